/* redraft-serve: serve a model over HTTP, draft with the live version, stream traces.
 *
 * main reads the configuration, opens the front door, so that probes hear "loading", and runs the loop;
 * a thread of its own opens the model and what needs it, in order of what the next one needs.
 * Then READY. Bad input ends it with one sentence and status 2; anything else that fails at start
 * with status 1.
 */
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/credential.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/base/notify.h"
#include "daemon/base/reload.h"
#include "daemon/base/service.h"
#include "kernels/dev.h"
#include "serve/chat.h"
#include "serve/control.h"
#include "serve/engine.h"
#include "serve/http.h"
#include "serve/keys.h"
#include "serve/openai.h"
#include "serve/serve_conf.h"
#include "serve/tap.h"
#include "serve/target.h"

enum { GIVE_UP_US = 1000000, FLUSH_US = 200000, KEYS_US = 1000000, LOOK_US = 1000000, MAX_BODY = 8 << 20, MAX_HEADERS = 16 << 10 };

static const enum log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};

/* Everything that runs, in the order it was opened. */
struct serve {
	struct conf conf;
	struct dev *dev;
	struct target *target;
	const struct chat_template *chat;
	struct tap *tap;
	struct engine *engine;
	struct metrics *metrics;
	struct loop *loop;
	struct openai *openai;
	struct http *http;
	struct control *control;
	struct loop_timer *drain, *keys_timer, *look;
	struct api_keys *keys;
	char model_name[128], keys_file[PATH_MAX];
	uint8_t tenant_key[TENANT_KEY];
	int stops;      /* times that we were told to */
	bool cancelled;
	/* the loading thread's, until it has posted on_loaded */
	pthread_t loader;
	bool loading;
	int kv_tokens, max_context, loaded; /* loaded: 0 or what went wrong, as e says */
	struct errtext why;
	char graphs[sizeof ((struct engine_status *)NULL)->graphs]; /* why some are not used: said already */
	struct service *service;
	struct reload reload;
	struct pulse engine_pulse;
	bool stall_said;
};

static void on_note(bool warn, const char *text)
{
	log_line(warn ? LOG_WARN : LOG_INFO, "%s", text);
}

/* A negative r from bad input is -EINVAL-like; these are the ones that are nobody's fault. */
static int status_of(int r)
{
	return r == -ENOMEM || r == -EIO || r == -EAGAIN ? 1 : 2;
}

static int open_model(struct serve *s, struct errtext *e)
{
	int threads = s->conf.threads ? (int)s->conf.threads : dev_all_threads(1);
	uint64_t start = clock_us();
	struct errtext why = {""};
	struct dev_options o = {.kind = (enum dev_kind)s->conf.device, .threads = threads, .isa = (enum dev_isa)s->conf.isa, .math = (enum dev_math)s->conf.device_math,
			  .graphs = s->conf.device_graphs == 0};
	int r = dev_new(&o, &s->dev, &why);

	if (r < 0)
		return errtext_set(e, r, "the compute device cannot be opened: %.200s", why.text);
	log_info("device: %s", s->dev->about);
	r = target_open(s->dev, s->conf.model, DT_BF16, s->conf.max_context ? (int)s->conf.max_context : INT_MAX, &s->target, &why);
	if (r < 0)
		return strstr(why.text, s->conf.model) ? errtext_set(e, r, "%s", why.text) :
							errtext_set(e, r, "model %.100s: %.140s", s->conf.model, why.text);
	(void)snprintf(s->model_name, sizeof s->model_name, "%s", *s->conf.model_name ? s->conf.model_name : s->target->name);
	log_info("model %s: %d blocks, width %d, vocabulary %d, fingerprint %.12s, opened in %.1f s", s->model_name,
		 s->target->cfg.n_layer, s->target->cfg.H, s->target->cfg.V, s->target->fp,
		 (double)(clock_us() - start) / 1e6);
	r = chat_select(s->target->chat_template, s->target->chat_template_len, *s->conf.family ? s->conf.family : NULL, &s->chat, &why);
	if (r < 0 && *s->conf.family)
		return errtext_set(e, r, "%s", why.text);
	if (r < 0)
		log_warn("%s; /v1/chat/completions is refused until then", why.text);
	return 0;
}

static int open_store(struct serve *s, struct errtext *e)
{
	struct errtext why = {""};
	int r = fs_mkdirs(s->conf.store);

	if (r < 0)
		return errtext_set(e, r, "store %.150s cannot be made: %s", s->conf.store, strerror(-r));
	r = fs_mkdirs(s->conf.run_dir);
	if (r < 0)
		return errtext_set(e, r, "run_dir %.150s cannot be made: %s", s->conf.run_dir, strerror(-r));
	r = target_export_frozen(s->target, s->conf.store, &why);
	if (r < 0) /* serving does not need it, the learner does */
		log_warn("the embedding was not exported for the learner: %s", *why.text ? why.text : strerror(-r));
	target_rest(s->target);
	return 0;
}

/* The budget of keys and values, and from it the longest request. */
static void kv_budget(struct serve *s)
{
	const struct llama_config *c = &s->target->cfg;
	double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), row = 4.0 * c->n_layer * c->n_kv * c->hd;
	int64_t named = s->conf.max_context, most = s->target->train_context, kv = s->conf.kv_tokens;

	most = named && named < most ? named : most;
	if (!kv) {
		kv = s->conf.max_seqs * (most < 4096 ? most : 4096);
		kv = memory > 0 && (double)kv * row > memory / 8 ? (int64_t)(memory / 8 / row) : kv;
		kv = named && kv < most ? most : kv;
	}
	s->kv_tokens = (int)kv;
	s->max_context = (int)(most < kv ? most : kv);
}

static int open_tap(struct serve *s, struct errtext *e)
{
	struct tap_options o = {
		.brokers = s->conf.brokers, .traces_topic = "redraft.traces", .rounds_topic = "redraft.rounds", .H_t = s->target->cfg.H, .max_rows = s->max_context,
		.topk = (int)s->conf.topk, .payload = (enum record_payload)s->conf.payload, .prompt_hidden = s->conf.prompt_hidden, .sample = s->conf.sample,
		.ring_bytes = (size_t)s->conf.ring_mb << 20, .queue_bytes = (size_t)s->conf.queue_mb << 20,
		.extra_conf = *s->conf.extra ? s->conf.extra : NULL,
	};

	if (!*s->conf.brokers)
		return 0;
	memcpy(o.target_fp, s->target->fp, sizeof o.target_fp);
	return tap_new(&o, &s->tap, e);
}

static int open_engine(struct serve *s, struct errtext *e)
{
	struct engine_options o = {
		.dev = s->dev, .target = s->target->model, .max_seqs = (int)s->conf.max_seqs, .max_queue = (int)s->conf.max_queue,
		.max_context = s->max_context, .kv_tokens = s->kv_tokens, .prefix = (enum prefix_sharing)s->conf.prefix, .slowdown = s->conf.slowdown,
		.prefill_chunk = (int)s->conf.prefill_chunk, .draft_k = (int)s->conf.draft_k, .draft_mode = (enum draft_mode)s->conf.draft_mode,
		.draft_nodes = (int)s->conf.draft_nodes, .n_eog = s->target->n_eog, .tap = s->tap,
	};

	memcpy(o.eog_ids, s->target->eog_ids, sizeof o.eog_ids);
	memcpy(o.target_fp, s->target->fp, sizeof o.target_fp);
	return engine_new(&o, &s->engine, e);
}

static int open_front(struct serve *s, struct errtext *e)
{
	struct openai_options o = {.loop = s->loop, .metrics = s->metrics, .model_name = s->model_name, .keys = s->keys, .domains = s->conf.domains,
				   .deadline_ms = s->conf.deadline_ms};
	struct http_options h = {.listen = s->conf.listen, .listen_unix = s->conf.listen_unix, .max_body = MAX_BODY, .max_headers = MAX_HEADERS,
				 .max_bodies = (size_t)s->conf.bodies_mb << 20, .handle = openai_handle, .refusal = openai_refusal};
	int r;

	memcpy(o.tenant_key, s->tenant_key, sizeof o.tenant_key);
	r = openai_new(&o, &s->openai, e);
	if (r < 0)
		return r;
	h.ctx = s->openai;
	return http_new(s->loop, &h, &s->http, e);
}

/* --- keys --- */

static void refresh_keys(struct serve *s)
{
	struct errtext e = {""};
	int r = api_keys_refresh(s->keys, &e);

	if (r < 0)
		log_error("%s; the keys stay as they were", e.text);
	else if (r > 0)
		log_info("%d API keys read from %s", api_keys_count(s->keys), s->keys_file);
}

static void on_keys_timer(void *arg)
{
	struct serve *s = arg;

	refresh_keys(s);
	loop_timer_set(s->keys_timer, KEYS_US);
}

static int open_keys(struct serve *s, struct errtext *e)
{
	int r = 0;

	(void)snprintf(s->keys_file, sizeof s->keys_file, "%s", s->conf.api_keys_file);
	if (*s->keys_file || credential_path("api_keys", s->keys_file, sizeof s->keys_file) == 0)
		r = api_keys_open(s->keys_file, &s->keys, e);
	if (r == 0 && s->keys && (r = loop_timer_new(s->loop, on_keys_timer, s, &s->keys_timer)) < 0)
		return errtext_set(e, r, "out of memory");
	if (r == 0 && s->keys)
		loop_timer_set(s->keys_timer, KEYS_US);
	return r;
}

/* --- shutdown: take no more, let what runs end within drain_s, then cancel it; told twice, end at once --- */

/* The last answers lie in their connections' buffers: the loop needs a moment to write them. */
static void on_idle(void *arg)
{
	struct serve *s = arg;

	s->cancelled = true;
	http_stop_accepting(s->http);
	loop_timer_set(s->drain, FLUSH_US);
}

static void on_drain_over(void *arg)
{
	struct serve *s = arg;

	if (s->cancelled) {
		loop_stop(s->loop);
		return;
	}
	log_warn("%d requests did not end in time, cancelling", openai_running(s->openai));
	s->cancelled = true;
	openai_cancel_all(s->openai);
	loop_timer_set(s->drain, GIVE_UP_US);
}

static void on_stop(void *arg)
{
	struct serve *s = arg;

	if (s->stops++ > 0) {
		log_warn("told to stop again: %d requests are cut", openai_running(s->openai));
		loop_stop(s->loop);
		return;
	}
	log_info("stopping: %d requests may end within %g s", openai_running(s->openai), s->conf.drain_s);
	notify_state("STOPPING=1");
	http_last_requests(s->http);
	loop_timer_set(s->drain, (uint64_t)(s->conf.drain_s * 1e6));
	if (s->engine)
		engine_drain(s->engine, clock_us() + (uint64_t)(s->conf.drain_s * 1e6)); /* what was taken, waiting or running, has as long */
	openai_drain(s->openai, on_idle, s);
}

/* --- reload --- */

static int apply(void *arg, const void *fresh, struct errtext *e)
{
	const struct conf *c = fresh;
	struct serve *s = arg;
	int r = openai_set_domains(s->openai, c->domains, e);

	if (r < 0)
		return r;
	engine_set_draft_k(s->engine, (int)c->draft_k);
	engine_set_draft_mode(s->engine, (enum draft_mode)c->draft_mode);
	if (s->tap)
		tap_set_sample(s->tap, c->sample);
	log_set_level(levels[c->log_level]);
	return 0;
}

static void on_reload(void *arg)
{
	struct serve *s = arg;
	struct errtext e = {""};
	int r;

	if (!s->control) { /* the loading thread reads the configuration */
		log_warn("not reloaded: the model is still loading");
		return;
	}
	if (s->keys)
		refresh_keys(s);
	r = reload_now(&s->reload, &e);
	log_line(r < 0 ? LOG_ERROR : LOG_INFO, "%s", e.text);
}

/* --- what the service manager hears --- */

static bool on_alive(void *arg)
{
	struct serve *s = arg;
	bool busy, moves;
	uint64_t beats = engine_beats(s->engine, &busy);

	moves = pulse_moves(&s->engine_pulse, beats, busy);
	if (!moves && !s->stall_said)
		log_error("the engine has requests and does nothing; the service manager will restart us unless it moves");
	s->stall_said = !moves;
	return moves;
}

static void on_status(void *arg, char *ret, size_t size)
{
	struct serve *s = arg;
	struct engine_status g;

	engine_status(s->engine, &g);
	(void)snprintf(ret, size, "serving %s, draft version %u live; %d running, %d waiting", s->model_name, g.live, g.running, g.waiting);
}

static void tell_graphs(struct serve *s)
{
	struct engine_status now;

	engine_status(s->engine, &now);
	if (strcmp(now.graphs, s->graphs) != 0)
		log_warn("a part of a round is launched plainly, not as a CUDA graph: %s", now.graphs);
	memcpy(s->graphs, now.graphs, sizeof s->graphs);
}

/* Whoever started us: no call to a lost device will succeed again in this process, but one in another may. */
static void on_look(void *arg)
{
	struct serve *s = arg;

	tell_graphs(s);
	if (!s->dev->lost) {
		loop_timer_set(s->look, LOOK_US);
		return;
	}
	s->loaded = errtext_set(&s->why, -EIO, "the device is lost, ending so that the service manager starts anew: %.120s", s->dev->error);
	loop_stop(s->loop);
}

/* --- start --- */

static int load(struct serve *s, struct errtext *e)
{
	int r;

	if ((r = open_model(s, e)) < 0 || (r = open_store(s, e)) < 0)
		return r;
	kv_budget(s);
	r = open_tap(s, e);
	return r < 0 ? r : open_engine(s, e);
}

static struct json_t *on_config(void *arg)
{
	struct serve *s = arg;

	return conf_show(&serve_program, &s->conf);
}

static int open_control(struct serve *s, struct errtext *e)
{
	struct control_options c = {.loop = s->loop, .engine = s->engine, .tap = s->tap, .tokenizer = s->target->tokenizer, .run_dir = s->conf.run_dir, .store = s->conf.store,
				    .model_name = s->model_name, .target_fp = s->target->fp, .note = on_note, .config = on_config, .config_arg = s};

	return control_new(&c, &s->control, e);
}

/* On the loop, when the loading thread is through. */
static void on_loaded(void *arg)
{
	struct serve *s = arg;
	struct openai_model m = {0};

	if (s->loaded == 0)
		s->loaded = open_control(s, &s->why);
	if (s->loaded < 0) {
		loop_stop(s->loop);
		return;
	}
	m = (struct openai_model){s->target->tokenizer, s->chat, s->model_name, s->max_context};
	openai_open(s->openai, &openai_real_engine, s->engine, s->tap, &m);
	log_info("ready: http on port %d, context %d, %d together, chains of %d", http_port(s->http), s->max_context, (int)s->conf.max_seqs,
		 (int)s->conf.draft_k);
	if (service_new(&(struct service_options){.loop = s->loop, .alive = on_alive, .status = on_status, .arg = s}, &s->service) < 0)
		log_error("out of memory: nobody feeds the service manager's watchdog");
	if (loop_timer_new(s->loop, on_look, s, &s->look) < 0)
		log_error("out of memory: nobody looks whether the device is lost");
	else
		loop_timer_set(s->look, LOOK_US);
	if (!s->stops)
		notify_state("READY=1\nSTATUS=serving %s", s->model_name);
}

static void *loader(void *arg)
{
	struct serve *s = arg;

	s->loaded = load(s, &s->why);
	if (loop_post(s->loop, on_loaded, s) < 0)
		loop_stop(s->loop);
	return NULL;
}

static int start(struct serve *s, struct errtext *e)
{
	int r;

	s->metrics = metrics_new();
	if (!s->metrics || loop_new(&s->loop) < 0)
		return errtext_set(e, -ENOMEM, "out of memory");
	reload_count(&s->reload, s->metrics);
	if ((r = tenant_key_read(s->conf.tenant_key_file, s->tenant_key, e)) < 0 || (r = open_keys(s, e)) < 0 || (r = open_front(s, e)) < 0)
		return r;
	r = loop_timer_new(s->loop, on_drain_over, s, &s->drain);
	if (r < 0)
		return errtext_set(e, r, "out of memory");
	loop_on_signal(s->loop, on_stop, on_reload, s);
	r = -pthread_create(&s->loader, NULL, loader, s);
	s->loading = r == 0;
	return r < 0 ? errtext_set(e, r, "the loading thread cannot be started: %s", strerror(-r)) : 0;
}

/* Connections first (each cancels its request), then the engine (which ends them all),
 * then what held them. */
static void stop(struct serve *s)
{
	if (s->loading)
		pthread_join(s->loader, NULL);
	service_free(s->service);
	if (s->keys_timer)
		loop_timer_free(s->keys_timer);
	if (s->drain)
		loop_timer_free(s->drain);
	loop_timer_free(s->look);
	if (s->control)
		control_free(s->control);
	if (s->http)
		http_free(s->http);
	if (s->engine)
		engine_free(s->engine);
	if (s->openai)
		openai_free(s->openai);
	api_keys_free(s->keys);
	if (s->tap)
		tap_free(s->tap);
	if (s->loop)
		loop_free(s->loop);
	if (s->metrics)
		metrics_free(s->metrics);
	if (s->target)
		target_close(s->target);
	if (s->dev)
		dev_free(s->dev);
	conf_done(&serve_program, &s->conf);
}

int main(int argc, char **argv)
{
	struct serve s = {0};
	struct errtext e = {""};
	int r = conf_load(&serve_program, argc, argv, &s.conf, NULL, 0, NULL, &e);

	(void)mallopt(M_ARENA_MAX, 2); /* no round allocates: a heap for each of a dozen threads would only hold what each once needed */
	if (r > 0)
		return 0;
	if (r < 0) {
		fprintf(stderr, "redraft-serve: %s\n", e.text);
		return 2;
	}
	s.reload = (struct reload){.program = &serve_program, .argc = argc, .argv = argv, .conf = &s.conf, .apply = apply, .arg = &s};
	log_init("redraft-serve", levels[s.conf.log_level]);
	r = start(&s, &e);
	if (r < 0) {
		log_error("%s", *e.text ? e.text : strerror(-r));
		stop(&s);
		return status_of(r);
	}
	r = loop_run(s.loop);
	if (s.loaded < 0)
		log_error("%s", *s.why.text ? s.why.text : strerror(-s.loaded));
	else
		log_info("stopped");
	r = s.loaded < 0 ? status_of(s.loaded) : r < 0;
	stop(&s);
	return r;
}
