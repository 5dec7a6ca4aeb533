"use strict";
/* The page of redraftd. It listens to /events and shows what comes; the curve is read from /api/history whenever
 * a point is added. What comes from the data goes in as text, never as markup. The token of the change
 * buttons lives in one variable until the page is closed.
 */
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let state = null, past = null, range = "fine", token = "", source = null, poll = 0, pending = null;
const shown = new Map(); /* what each part was last drawn from: nothing is redrawn under a reader for nothing */

/* ---- small things ---- */

function el(name, text, cls) {
	const e = document.createElement(name);
	if (text !== undefined && text !== null) e.textContent = String(text);
	if (cls) e.className = cls;
	return e;
}

function svg(name, attributes, text) {
	const e = document.createElementNS(SVG, name);
	for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, String(v));
	if (text !== undefined) e.textContent = text;
	return e;
}

function changed(part, ...from) {
	const text = JSON.stringify(from);
	if (shown.get(part) === text) return false;
	shown.set(part, text);
	return true;
}

function say(id, text) {
	if ($(id).textContent !== text) $(id).textContent = text;
}

const is_number = (v) => typeof v === "number" && Number.isFinite(v);
const al = (v) => (is_number(v) ? v.toFixed(2) : "–");
const count = (v) => (is_number(v) ? v.toLocaleString("en") : "–");
const version = (v) => (v ? String(v) : "none");

function span(s) {
	if (!is_number(s)) return "–";
	if (s < 120) return `${Math.round(s)} s`;
	if (s < 7200) return `${Math.round(s / 60)} min`;
	return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

function clock(ms, seconds) {
	return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hour12: false });
}

function row(cells, now) {
	const tr = el("tr", null, now ? "now" : "");
	cells.forEach((c, i) => {
		const cell = el(i ? "td" : "th", c && typeof c === "object" ? c.text : c, c && typeof c === "object" ? c.cls : "");
		if (!i) cell.scope = "row";
		tr.append(cell);
	});
	return tr;
}

function rows(id, list, empty) {
	$(id).replaceChildren(...list);
	if (list.length) return;
	const td = el("td", empty, "quiet");
	td.colSpan = 10;
	const tr = el("tr");
	tr.append(td);
	$(id).append(tr);
}

function pairs(id, list) {
	$(id).replaceChildren(...list.flatMap(([k, v, cls]) => [el("dt", k), el("dd", v, cls)]));
}

/* ---- the parts ---- */

const drift_words = ["no drift", "one stream has fallen", "several streams have fallen", "most of the traffic has fallen"];

function show_summary(s, drift) {
	const lengths = Object.values(s.domains).filter((d) => is_number(d.accept_length) && d.requests);
	const all = lengths.reduce((n, d) => n + d.requests, 0);
	const mean = lengths.reduce((n, d) => n + d.accept_length * d.requests, 0) / all;
	const bits = [s.live ? `Version ${s.live} is live` : "No draft is live"];
	if (all) bits.push(`accept length ${mean.toFixed(1)}`);
	bits.push(drift.decay ? "the engine decays" : drift_words[drift.level] || `drift level ${drift.level}`);
	if (s.hold) bits.push("promotions held");
	if (s.pin) bits.push(`pinned to ${s.pin}`);
	say("summary", bits.join(" · "));
	document.title = `${s.live ? `v${s.live}` : "no draft"}${drift.decay || drift.level ? " (!)" : ""} – redraft`;
}

function show_alerts(s, drift) {
	const list = [];
	if (drift.decay) list.push(drift.decay);
	if (drift.level) list.push(`Drift: ${drift_words[drift.level] || drift.level}.`);
	if (!s.serve.up) list.push("The server does not answer.");
	if (!s.learn.up) list.push("The learner does not answer.");
	if (s.learn.records && s.learn.records.trouble) list.push(`Learner: ${s.learn.records.trouble}`);
	if (changed("alerts", list)) $("alerts").replaceChildren(...list.map((t) => el("p", t, "alert")));
}

function up(peer) {
	return peer.up ? ["State", `answers, up ${span(peer.uptime_s)}`, "good"] : ["State", "does not answer", "bad"];
}

function show_peers(s) {
	const serve = s.serve, learn = s.learn, records = learn.records || {};
	const slots = (serve.slots || []).map((x) => (x.version ? `${x.version} ${x.state}${x.requests ? ` (${x.requests})` : ""}` : "empty"));
	pairs("serve", [up(serve), ["Model", serve.model || "–"], ["Live", is_number(serve.live) ? version(serve.live) : "–"], ["Generation", count(serve.generation)],
		["Requests", `${count(serve.running)} running, ${count(serve.waiting)} waiting`], ["Slots", slots.join(", ") || "–"],
		["Set by", serve.source || "–"]]);
	pairs("learn", [up(learn), ["Training", !learn.up ? "–" : learn.paused ? "paused" : learn.state || "runs", learn.paused ? "bad" : ""], ["Step", count(learn.step)],
		["Tokens learned", count(learn.trained_tokens)], ["Loss", is_number(learn.loss) ? learn.loss.toFixed(3) : "–"],
		["Behind", is_number(records.lag) ? `${count(records.lag)} records` : "–"], ["From version", is_number(learn.base_version) ? version(learn.base_version) : "–"],
		["Held out", `${count(learn.held_out)} requests`],
		["Pinned", Object.entries(learn.pinned || {}).map(([domain, n]) => `${count(n)} of ${domain}`).join(", ") || "none"]]);
}

function show_versions(s, versions) {
	if (!changed("versions", s.live, versions)) return;
	rows("versions", [...versions].reverse().map((v) => {
		const g = v.verdict || {}, bad = v.state === "rejected" || v.state === "quarantined";
		return row([v.version, v.parent || "–", { text: v.state, cls: v.state === "live" ? "good" : bad ? "bad" : "" }, g.verdict || "–",
			al(g.candidate_al), al(g.live_al), { text: v.reason || g.reason || "", cls: "why" }, v.created ? v.created.slice(0, 16).replace("T", " ") : "–"],
			v.version === s.live);
	}), "No version yet: the server decodes plainly.");
}

function show_drift(drift) {
	say("drift-level", drift.decay || `Level ${drift.level}: ${drift_words[drift.level] || ""}. No decay seen.`);
	if (!changed("streams", drift.streams)) return;
	const list = [...drift.streams].sort((a, b) => b.alarm - a.alarm || b.requests - a.requests);
	rows("streams", list.map((x) => row([x.domain, x.context, x.version, count(x.requests), al(x.mean), al(x.recent), al(x.p50), al(x.p95),
		is_number(x.evidence) ? x.evidence.toFixed(1) : "–", { text: x.alarm ? "fallen" : "no", cls: x.alarm ? "bad" : "" }], x.alarm)),
		"No stream yet.");
}

function show_domains(domains) {
	if (!changed("domains", domains)) return;
	rows("domains", Object.entries(domains).map(([name, d]) => row([name, al(d.accept_length), al(d.recent), count(d.requests), count(d.rounds)])),
		"No round record yet.");
}

function show_state(fresh) {
	state = fresh;
	show_summary(state.status, state.drift);
	show_alerts(state.status, state.drift);
	show_peers(state.status);
	show_versions(state.status, state.versions);
	show_drift(state.drift);
	show_domains(state.status.domains);
	show_change();
	if (changed("said", state.status.last_event)) read_past();
}

function show_events() {
	if (!changed("events", past.events)) return;
	$("events").replaceChildren(...[...past.events].reverse().map((x) => {
		const li = el("li"), old = Date.now() - x.t_ms > 43200000;
		const time = el("time", `${old ? `${new Date(x.t_ms).toLocaleDateString("en", { day: "numeric", month: "short" })} ` : ""}${clock(x.t_ms, true)}`);
		time.dateTime = new Date(x.t_ms).toISOString();
		li.append(time, el("span", x.text, x.kind === "decay" || x.kind === "drift" ? "bad" : ""));
		return li;
	}));
	if (!past.events.length) $("events").append(el("li", "Nothing since the daemon started.", "quiet"));
}

/* ---- the curve ---- */

const line_class = (i) => `line s${i % 8}${i >= 8 ? " dashed" : ""}`;

function curve(list, at, x, y, gap) {
	let d = "", last = -Infinity;
	list.forEach((v, i) => {
		if (v === null) return;
		d += `${i - last > gap ? "M" : "L"}${x(at(i)).toFixed(1)} ${y(v).toFixed(1)}`;
		if (i - last > gap) d += "h.01";
		last = i;
	});
	return d;
}

function ticks(low, high) {
	const step = [0.1, 0.2, 0.5, 1, 2, 5].find((s) => (high - low) / s <= 6) || 10, list = [];
	for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) list.push(v);
	return list;
}

function draw_marks(root, x, from, top, bottom) {
	const free = { switch: Infinity, alarm: Infinity };
	for (const m of [...past.marks].reverse()) { /* where names would lie on each other, the newest has room */
		if (m.t_ms < from) continue;
		const at = x(m.t_ms), g = svg("g", {}), lane = m.kind === "switch" ? "switch" : "alarm";
		g.append(svg("title", {}, `${clock(m.t_ms, true)} ${m.text}`), svg("line", { x1: at, x2: at, y1: top, y2: bottom, class: `mark mark-${m.kind}` }));
		if (at < free[lane]) {
			g.append(svg("text", { x: at, y: lane === "switch" ? top - 16 : top - 3, "text-anchor": "middle", class: `mark-text-${m.kind}` },
				m.kind === "switch" ? (m.version ? `v${m.version}` : "none") : m.kind));
			free[lane] = at - 34;
		}
		root.append(g);
	}
}

function draw() {
	if (!past) return;
	const part = past[range], hours = range === "fine" ? 1 : 24, names = Object.keys(part.domains);
	const width = Math.max(280, $("chart").clientWidth), height = 260, left = 34, right = 10, top = 34, bottom = 24;
	const end = part.end_ms, from = end - hours * 3600000;
	const values = names.flatMap((n) => part.domains[n]).filter((v) => v !== null);
	let low = values.length ? Math.min(...values) : 1, high = values.length ? Math.max(...values) : 2;
	if (high - low < 0.2) { low -= 0.1; high += 0.1; }
	const pad = (high - low) * 0.08;
	low = Math.max(1, low) - (low > 1 + pad ? pad : 0);
	high += pad;
	const x = (t) => left + ((t - from) / (end - from)) * (width - left - right);
	const y = (v) => height - bottom - ((v - low) / (high - low)) * (height - top - bottom);
	const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
	const counted = (k) => past.marks.filter((m) => m.kind === k && m.t_ms >= from).length;

	root.setAttribute("aria-label", `Accept length over the last ${hours === 1 ? "hour" : "24 hours"}. ${names.map((n) => `${n} ${al(last_of(part.domains[n]))}`).join(", ") || "No requests"}. ` +
		`${counted("switch")} switches, ${counted("drift")} drift reports, ${counted("decay")} of decay.`);
	for (const v of ticks(low, high))
		root.append(svg("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid" }), svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", class: "axis" }, v.toFixed(1)));
	const step = (hours * 3600000) / (width < 500 ? 4 : 6);
	for (let t = Math.ceil(from / step) * step; t <= end; t += step)
		if (x(t) > left + 15 && x(t) < width - right - 15) root.append(svg("text", { x: x(t), y: height - 6, "text-anchor": "middle", class: "axis" }, clock(t)));
	draw_marks(root, x, from, top, height - bottom);
	names.forEach((n, i) => {
		const list = part.domains[n], at = (k) => end - (list.length - k - 0.5) * part.step_ms;
		root.append(svg("path", { d: curve(list, at, x, y, range === "fine" ? 7 : 2), class: line_class(i) }));
	});
	if (!values.length) root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "axis" }, "No requests in this time"));
	$("chart").replaceChildren(root);
	draw_legend(names, part);
}

function last_of(list) {
	for (let i = list.length - 1; i >= 0; i--) if (list[i] !== null) return list[i];
	return null;
}

function draw_legend(names, part) {
	$("legend").replaceChildren(...names.map((n, i) => {
		const item = el("span"), swatch = svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
		swatch.append(svg("line", { x1: 1, x2: 27, y1: 5, y2: 5, class: line_class(i) }));
		item.append(swatch, el("span", `${n} ${al(last_of(part.domains[n]))}`));
		return item;
	}));
}

function set_range(name) {
	range = name;
	$("range-hour").setAttribute("aria-pressed", String(name === "fine"));
	$("range-day").setAttribute("aria-pressed", String(name === "coarse"));
	draw();
}

/* ---- changing ---- */

const changes = {
	rollback: {
		title: () => `Roll back version ${state.status.live}`, yes: "Roll back",
		text: () => `New and running requests go to ${state.back_to ? `version ${state.back_to}` : "no draft at all"} at their next round. Version ${state.status.live} is quarantined and the learner starts again from what is live.`,
		body: () => ({ live: state.status.live }),
		done: (r) => `Rolled back: ${r.live ? `version ${r.live}` : "no draft"} is live.`,
	},
	hold: {
		title: () => "Hold promotions", yes: "Hold", text: () => "Candidates are made and judged, none goes live until release.",
		body: () => ({ reason: $("ask-reason").value || "from the page" }), done: () => "Promotions are held.",
	},
	release: {
		title: () => "Release", yes: "Release", text: () => "Promotions go on, and a finding of decay counts as looked at. A learner paused by it goes on by ResumeTraining.",
		body: () => ({}), done: () => "Released.",
	},
};

function show_change() {
	if (!state.can_change) {
		if ($("change")) $("change").remove();
		return;
	}
	if (!$("change")) {
		$("alerts").after($("t-change").content.cloneNode(true));
		for (const verb of Object.keys(changes)) $(`do-${verb}`).addEventListener("click", () => ask(verb));
	}
	$("do-rollback").disabled = !state.status.live;
	$("do-hold").disabled = state.status.hold;
	$("do-release").disabled = !state.status.hold && !state.drift.decay;
}

function ask(verb) {
	const c = changes[verb];
	pending = { verb, body: c.body, done: c.done };
	if (verb === "rollback") {
		const body = c.body(); /* what was seen when it was asked, not what has come since */
		pending.body = () => body;
	}
	say("ask-title", c.title());
	say("ask-text", c.text());
	say("ask-yes", c.yes);
	$("ask-reason-row").hidden = verb !== "hold";
	$("ask-reason").value = "";
	$("ask-token").value = token;
	$("ask").showModal();
	(token ? $("ask-no") : $("ask-token")).focus();
}

async function confirm_change() {
	const { verb, body, done } = pending;
	token = $("ask-token").value.trim();
	const sent = body();
	$("ask").close();
	if (/[^!-~]/.test(token)) {
		token = "";
		say("changed", "Refused: a token is printable ASCII without blanks");
		return;
	}
	say("changed", "Asked…");
	try {
		const r = await fetch(`/api/${verb}`, { method: "POST", credentials: "omit", body: JSON.stringify(sent),
			headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" } });
		const reply = await r.json();
		if (r.status === 401) token = "";
		say("changed", r.ok ? done(reply) : `Refused: ${reply.error}`);
	} catch (e) {
		say("changed", "No answer: look at what is live before asking again.");
	}
}

/* ---- hearing ---- */

async function read(path, show) {
	let j;
	try {
		const r = await fetch(path, { credentials: "omit", cache: "no-store" });
		if (!r.ok) return false;
		j = await r.json();
	} catch (e) {
		return false;
	}
	show(j);
	return true;
}

function read_past() {
	return read("/api/history", (j) => {
		past = j;
		draw();
		show_events();
	});
}

async function ask_again() {
	if (await read("/api/status", show_state)) {
		say("link", "");
		read_past();
	}
	if (Date.now() > poll + 30000) listen();
}

function listen() {
	if (source) source.close();
	poll = Date.now();
	source = new EventSource("/events");
	source.addEventListener("status", (e) => {
		say("link", "");
		show_state(JSON.parse(e.data));
	});
	source.addEventListener("history", read_past);
	source.onerror = () => {
		if (!$("link").textContent) say("link", `Not connected since ${clock(Date.now(), true)}; trying again. What is below is from then.`);
	};
}

$("range-hour").addEventListener("click", () => set_range("fine"));
$("range-day").addEventListener("click", () => set_range("coarse"));
$("ask-no").addEventListener("click", () => $("ask").close());
$("ask-form").addEventListener("submit", (e) => {
	e.preventDefault(); /* by fetch, with the token in a header */
	confirm_change();
});
$("ask").addEventListener("close", () => ($("ask-token").value = ""));
window.addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => { /* a page nobody sees takes no place among the listeners */
	if (document.hidden) source.close();
	else listen();
});
setInterval(() => { /* all places taken, or a proxy that cannot stream: ask */
	if (source && source.readyState === EventSource.CLOSED && !document.hidden) ask_again();
}, 5000);
read_past();
listen();
