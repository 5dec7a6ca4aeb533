/* HTTP/1.1 with Connection: close (learn/ask.h): what comes back ends where the server says or closes. */
#include "learn/ask.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "daemon/base/buf.h"

enum { MAX_REPLY = 8 << 20 };

int ask_parse(const char *url, struct ask_server *ret, struct errtext *e)
{
	const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
	size_t n = strcspn(host, "/");
	const char *colon = memchr(host, ':', n);
	if (strncmp(url, "https:", 6) == 0)
		return errtext_set(e, -EINVAL, "server: %.100s: TLS ends at a proxy, give its plain side", url);
	if (!colon || colon == host || (size_t)(colon - host) >= sizeof ret->host || n - (size_t)(colon - host) - 1 >= sizeof ret->port || host + n == colon + 1)
		return errtext_set(e, -EINVAL, "server: \"%.100s\" is not http://HOST:PORT", url);
	(void)snprintf(ret->host, sizeof ret->host, "%.*s", (int)(colon - host), host);
	(void)snprintf(ret->port, sizeof ret->port, "%.*s", (int)(host + n - colon - 1), colon + 1);
	return 0;
}

static int dial(const struct ask_server *s, int timeout_s, int *ret)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	struct timeval t = {.tv_sec = timeout_s};
	int r = -EHOSTUNREACH, fd = -1;
	if (getaddrinfo(s->host, s->port, &hints, &list))
		return -EHOSTUNREACH;
	for (struct addrinfo *a = list; a && r; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd < 0)
			continue;
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
		r = connect(fd, a->ai_addr, a->ai_addrlen) ? -errno : 0;
		if (r)
			(void)close(fd);
	}
	freeaddrinfo(list);
	if (!r)
		*ret = fd;
	return r;
}

static int send_all(int fd, const struct buf *b)
{
	for (size_t at = 0; at < b->len;) {
		ssize_t n = send(fd, b->data + at, b->len - at, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EPIPE;
		at += (size_t)n;
	}
	return 0;
}

/* Where the body begins, or 0; *ret_end: where it ends, or 0 = at the close. */
static size_t body_at(const struct buf *b, size_t *ret_end)
{
	const char *text = (const char *)b->data, *end = b->len ? memmem(text, b->len, "\r\n\r\n", 4) : NULL;
	*ret_end = 0;
	if (!end)
		return 0;
	for (const char *line = text; line < end; line++) {
		if (strncasecmp(line, "content-length:", 15) == 0)
			*ret_end = (size_t)(end + 4 - text) + strtoul(line + 15, NULL, 10);
		while (*line != '\n') /* the blank line ends in one */
			line++;
	}
	return (size_t)(end + 4 - text);
}

static int receive(int fd, struct buf *b)
{
	for (;;) {
		size_t end;
		if (body_at(b, &end) && end && b->len >= end)
			return 0;
		int r = buf_reserve(b, 16384);
		if (r)
			return r;
		ssize_t n = recv(fd, b->data + b->len, 16384, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (n == 0)
			return b->len ? 0 : -ECONNRESET;
		b->len += (size_t)n;
	}
}

static int understand(const struct buf *b, json_t **ret, struct errtext *e)
{
	size_t end, at = body_at(b, &end);
	int status = 0;
	if (!at || sscanf((const char *)b->data, "HTTP/1.%*d %d", &status) != 1)
		return errtext_set(e, -EIO, "the server's answer is not HTTP");
	json_t *j = end && b->len < end ? NULL : json_loadb((const char *)b->data + at, b->len - at, JSON_DISABLE_EOF_CHECK, NULL);
	if (status == 200 && j) {
		*ret = j;
		return 0;
	}
	const char *said = json_string_value(json_object_get(json_object_get(j, "error"), "message"));
	(void)errtext_set(e, 0, "HTTP %d: %.150s", status, said ? said : "no reason given");
	json_decref(j);
	return status == 429 || status == 503 ? ASK_E_BUSY : -EIO;
}

int ask_post(const struct ask_server *s, const char *path, const char *headers, const json_t *body, int timeout_s, json_t **ret, struct errtext *e)
{
	struct buf b = BUF_INIT(MAX_REPLY);
	char *text = json_dumps(body, JSON_COMPACT);
	int fd = -1, r = text ? buf_printf(&b, "POST %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n", path, s->host,
					   s->port, strlen(text), headers)
			      : -ENOMEM;
	if (!r)
		r = buf_puts(&b, text);
	free(text);
	if (!r && (r = dial(s, timeout_s, &fd)))
		(void)errtext_set(e, r, "nobody answers at %.100s:%.10s: %s", s->host, s->port, strerror(-r));
	if (!r)
		r = send_all(fd, &b);
	buf_clear(&b);
	if (!r)
		r = receive(fd, &b);
	if (fd >= 0)
		(void)close(fd);
	if (!r)
		r = understand(&b, ret, e);
	else if (e && !*e->text)
		(void)errtext_set(e, r, "%.100s:%.10s: %s", s->host, s->port, strerror(-r));
	buf_done(&b);
	return r;
}
