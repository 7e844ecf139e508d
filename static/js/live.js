// Keeps the page up to date over one websocket; asks every few seconds instead while there is none.
//
//   <div data-live-topic="jobs" data-live-url="/jobs/?partial=1">   refetched and merged in when its topic changes
//   <pre data-live-log="42" data-log-stream="merged" data-log-offset="0" data-log-eof="0">   text is appended
//   #live-dot (data-state live | delayed | paused | offline), #stale-banner, #live-status or #announce
//
// The wire format and its merge rule are those of scheduler/realtime/messages.py; docs/reference/live.md tells more.
(function () {
  "use strict";

  const VERSION = 1;
  const LEAST_MS = 1000;           // no part of the page is fetched more often
  const POLL_MS = 5000;            // while the socket is gone
  const PING_MS = 5000;
  const SILENCE_MS = 12000;        // a socket that says nothing for so long is dead
  const STALE_MS = 15000;          // then the banner says so
  const HIDDEN_MS = 5000;          // a hidden tab gives its socket back
  const IDLE_MS = 10000;           // a pointer that rests so long holds nothing back
  const SPEAK_MS = 10000;          // screen readers announce at most one summary in this time
  const FETCH_TIMEOUT_MS = 15000;
  const SLOWEST_RETRY_MS = 30000;
  const MOST_LOG_CHARS = 2000000;
  const SIGN_IN = 4401, TOO_MANY = 4429;

  const regions = new Map();       // element -> Region
  const logs = new Map();          // element -> Log
  const topics = new Map();        // name -> {sub, seq, version, asked, listeners}
  let socket = null, opened = false, attempts = 0, retryTimer = 0, hiddenTimer = 0;
  let heardAt = 0, goodAt = Date.now(), degraded = false, signedOut = false, subs = 0;
  let paused = remembered("muster-live") === "paused";
  const everySeconds = Math.min(60, Math.max(1, Number(remembered("muster-live-every")) || 1));

  function remembered(key) {
    try { return localStorage.getItem(key); } catch (blocked) { return null; }
  }

  function remember(key, value) {
    try { localStorage.setItem(key, value); } catch (blocked) { /* private windows may refuse */ }
  }

  // ------------------------------------------------------------ the socket

  function connect() {
    clearTimeout(retryTimer);
    if (socket || signedOut || document.hidden || !topics.size) return;
    const scheme = location.protocol === "https:" ? "wss://" : "ws://";
    try {
      socket = new WebSocket(scheme + location.host + "/ws/live/");
    } catch (refused) {
      socket = null;
      retry();
      return;
    }
    heardAt = Date.now();
    socket.onmessage = (event) => {
      heardAt = Date.now();
      let message = null;
      try { message = JSON.parse(event.data); } catch (broken) { return; }
      if (message.v === VERSION) take(message);
    };
    socket.onclose = (event) => { drop(event.code); };
  }

  function drop(code) {
    if (!socket) return;
    socket.onmessage = socket.onclose = null;
    socket.close();
    socket = null;
    opened = false;
    if (code === SIGN_IN) { leave(); return; }
    retry(code === TOO_MANY ? SLOWEST_RETRY_MS : 0);
    show();
  }

  function retry(least) {
    const wait = Math.min(SLOWEST_RETRY_MS, 1000 * 2 ** attempts) * (0.5 + Math.random());
    attempts += 1;
    clearTimeout(retryTimer);
    retryTimer = setTimeout(connect, Math.max(wait, least || 0));
  }

  function send(message) {
    if (socket && opened) socket.send(JSON.stringify(message));
  }

  function take(message) {
    switch (message.op) {
      case "hello":
        opened = true;
        attempts = 0;
        degraded = message.degraded;
        goodAt = Date.now();
        if (paused) send({ op: "pause" });
        topics.forEach((topic, name) => ask(name));
        break;
      case "snapshot": case "patch": case "dirty":
        goodAt = Date.now();
        follow(message);
        break;
      case "pong":
        goodAt = Date.now();
        degraded = message.degraded;
        topics.forEach((topic, name) => {
          const place = message.topics[name];
          // A subscription on its way is not a loss; one that the server never got, or whose message was lost, is.
          if (!topic.gone && (!place || place[0] !== topic.sub || (place[1] >= 0 && place[1] !== topic.seq))) ask(name);
        });
        break;
      case "degraded": degraded = true; break;
      case "restored": degraded = false; break;
      case "gone": case "error": refuse(message); break;
    }
    show();
  }

  function ask(name) {
    const topic = topics.get(name);
    topic.sub = ++subs;
    topic.seq = -1;
    const request = { op: "subscribe", topic: name, sub: topic.sub, every: everySeconds };
    if (topic.log) Object.assign(request, { stream: topic.log.stream, offset: topic.log.offset, attempt: topic.log.attempt });
    else Object.assign(request, { data: false, since: topic.version });
    send(request);
  }

  function follow(message) {
    const topic = topics.get(message.topic);
    if (!topic || message.sub !== topic.sub || message.seq <= topic.seq) return;
    if (message.op !== "snapshot" && message.seq !== topic.seq + 1) { ask(message.topic); return; }
    topic.seq = message.seq;
    if (topic.log) {
      const piece = message.op === "snapshot" ? message.data : message.patch;
      if (!piece || !topic.log.take(piece)) ask(message.topic);
      return;
    }
    const before = topic.version;
    topic.version = message.version;
    // The page may be older than the first snapshot: only a version seen before can be compared.
    if (message.op === "dirty" || before !== message.version) topic.regions.forEach((region) => region.refresh());
  }

  function refuse(message) {
    const topic = topics.get(message.topic);
    if (!topic || message.code === "unavailable") return;
    topic.gone = true;
    topic.regions.forEach((region) => region.end());
  }

  function watch(name) {
    if (!topics.has(name)) {
      topics.set(name, { sub: 0, seq: -1, version: "", regions: new Set(), log: null, gone: false });
      if (opened) Promise.resolve().then(() => ask(name));
    }
    return topics.get(name);
  }

  // ------------------------------------------------------------ parts of the page that are fetched again

  class Region {
    constructor(element) {
      this.element = element;
      this.timer = 0;
      this.busy = false;
      this.again = false;
      this.ended = false;
      this.held = null;
      this.fetchedAt = 0;
      this.tookMs = 0;
      element.dataset.liveTopic.split(/\s+/).filter(Boolean).forEach((name) => watch(name).regions.add(this));
    }

    get url() { return this.element.dataset.liveUrl; }

    // At most once a second, and less often where the answer takes long: a busy server is asked less.
    refresh() {
      if (this.ended || paused || document.hidden) { this.again = true; return; }
      if (this.busy) { this.again = true; return; }
      if (this.timer) return;
      const wait = this.fetchedAt + Math.max(LEAST_MS, everySeconds * 1000, 4 * this.tookMs) - Date.now();
      this.timer = setTimeout(() => { this.timer = 0; this.fetch(); }, Math.max(0, wait));
    }

    async fetch() {
      if (!this.element.isConnected) { forget(this); return; }
      this.busy = true;
      this.again = false;
      const started = Date.now();
      const stop = new AbortController();
      const timer = setTimeout(() => stop.abort(), FETCH_TIMEOUT_MS);
      try {
        const answer = await fetch(this.url, {
          headers: { "HX-Request": "true", "X-Muster-Live": "1" }, credentials: "same-origin", signal: stop.signal,
        });
        if (answer.status === 401 || (answer.redirected && /\/signin\/?$/.test(new URL(answer.url).pathname))) leave();
        else if (answer.status === 403 || answer.status === 404) this.end();
        else if (answer.ok) {
          goodAt = Date.now();
          this.offer(await answer.text());
        }
      } catch (unreachable) { /* the dot and the banner say so */ }
      clearTimeout(timer);
      this.fetchedAt = Date.now();
      this.tookMs = this.fetchedAt - started;
      this.busy = false;
      show();
      if (this.again) this.refresh();
    }

    // Rows stay where they are under a pointer or a focus; what would move them waits for a click or for idleness.
    offer(html) {
      const fresh = document.createElement("template");
      fresh.innerHTML = html;
      const moved = pointedAt(this.element) ? rowsMoved(this.element, fresh.content) : 0;
      if (!moved) { this.merge(fresh.content); return; }
      this.held = fresh.content;
      pill(this, moved);
    }

    release() {
      const content = this.held;
      if (content) this.merge(content);
    }

    merge(content) {
      this.held = null;
      pill(this, 0);
      const changes = { rows: new Set() };
      morphChildren(this.element, content, changes);
      if (window.htmx) window.htmx.process(this.element);
      scan();
      this.element.dispatchEvent(new CustomEvent("muster:swapped", { bubbles: true, detail: { changes: changes.rows.size } }));
      if (changes.rows.size) speak(changes.rows.size);
    }

    end() {
      if (this.ended) return;
      this.ended = true;
      notice("gone", "This page no longer exists, or you may no longer see it. The content may be out of date.", false);
    }
  }

  function forget(region) {
    regions.delete(region.element);
    topics.forEach((topic, name) => {
      if (topic.regions.delete(region) && !topic.regions.size && !topic.log) {
        topics.delete(name);
        send({ op: "unsubscribe", topic: name });
      }
    });
  }

  // ------------------------------------------------------------ pointer, focus, and the offer of changes

  let pointer = null, pointerAt = 0;
  document.addEventListener("pointermove", (event) => { pointer = event.target; pointerAt = Date.now(); }, { passive: true });
  document.addEventListener("pointerleave", () => { pointer = null; releaseAll(); });
  document.addEventListener("pointerover", (event) => { pointer = event.target; releaseAll(); }, { passive: true });
  document.addEventListener("focusout", () => setTimeout(releaseAll, 0));

  function pointedAt(element) {
    const table = pointer && pointer.nodeType === 1 && pointer.closest("table, [data-live-rows]");
    if (table && element.contains(table) && Date.now() - pointerAt < IDLE_MS) return true;
    const focus = document.activeElement;
    const row = focus && focus.closest && focus.closest("tbody tr, [data-live-rows] > *");
    return Boolean(row && element.contains(row));
  }

  function releaseAll() {
    regions.forEach((region) => { if (region.held && !pointedAt(region.element)) region.release(); });
  }

  function rowIds(root) {
    return Array.from(root.querySelectorAll("tbody tr[id], [data-live-rows] > [id]"), (row) => row.id);
  }

  // How many rows came, went or changed places.
  function rowsMoved(element, content) {
    const before = rowIds(element), after = rowIds(content);
    const old = new Set(before), now = new Set(after);
    const kept = before.filter((id) => now.has(id)), stay = after.filter((id) => old.has(id));
    let moved = before.length - kept.length + (after.length - stay.length);
    kept.forEach((id, index) => { if (stay[index] !== id) moved += 1; });
    return moved;
  }

  function pill(region, count) {
    let button = region.pill;
    if (!count) {
      if (button) button.remove();
      region.pill = null;
      return;
    }
    if (!button) {
      button = region.pill = document.createElement("button");
      button.type = "button";
      button.className = "btn small primary live-pill";
      // Over the page, not in it: in it, it would itself move the rows.
      Object.assign(button.style, { position: "fixed", left: "50%", bottom: "24px", transform: "translateX(-50%)", zIndex: 40 });
      button.dataset.livePill = "";
      button.addEventListener("click", () => region.release());
      region.element.before(button);
    }
    button.textContent = count === 1 ? "1 change" : count + " changes";
    button.title = "Show now. Changes also appear when the pointer leaves the table.";
  }

  // ------------------------------------------------------------ merging HTML into the page
  // By id where there is one, by place and tag otherwise. What the reader has done stays: focus, what is typed or
  // ticked, what is open, what is scrolled; so does the text of a log, which has its own source.

  function morphChildren(parent, source, changes) {
    const named = new Map();
    for (const child of parent.children) if (child.id) named.set(child.id, child);
    let old = parent.firstChild;
    for (const fresh of Array.from(source.childNodes)) {
      let match = null;
      if (fresh.nodeType === 1 && fresh.id) match = named.get(fresh.id) || null;
      else if (old && !(old.nodeType === 1 && old.id) && alike(old, fresh)) match = old;
      if (match && alike(match, fresh)) {
        if (match !== old) parent.insertBefore(match, old);
        else old = old.nextSibling;
        if (match.nodeType === 1) named.delete(match.id);
        morphNode(match, fresh, changes);
      } else {
        const added = document.importNode(fresh, true);
        parent.insertBefore(added, old);
        mark(added, changes);
      }
    }
    while (old) {
      const next = old.nextSibling;
      mark(old, changes);
      old.remove();
      old = next;
    }
  }

  function alike(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.nodeType !== 1 || a.id === b.id);
  }

  function mark(node, changes) {
    if (node.nodeType !== 1 && node.nodeType !== 3) return;
    const row = (node.nodeType === 1 ? node : node.parentElement)?.closest?.("[id]");
    if (row && (node.nodeType === 1 || node.nodeValue.trim())) changes.rows.add(row.id);
  }

  function morphNode(old, fresh, changes) {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== fresh.nodeValue) {
        const counts = old.parentElement && old.parentElement.matches("[data-since], [data-ago]");
        old.nodeValue = fresh.nodeValue;
        if (!counts) mark(old, changes);
      }
      return;
    }
    if (old.hasAttribute("data-live-log") && old.dataset.liveLog === fresh.dataset.liveLog) return;
    if (old.hasAttribute("data-live-keep")) return;
    if (old.isEqualNode(fresh)) return;
    const mine = old.nodeName === "DETAILS" || old.nodeName === "DIALOG" ? ["open"] : [];
    for (const { name, value } of Array.from(fresh.attributes)) {
      if (!mine.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of Array.from(old.attributes)) {
      if (!mine.includes(name) && !fresh.hasAttribute(name) && !name.startsWith("data-htmx")) old.removeAttribute(name);
    }
    if (old.nodeName === "TEXTAREA") return;
    morphChildren(old, fresh, changes);
  }

  // ------------------------------------------------------------ logs

  class Log {
    constructor(element) {
      this.element = element;
      this.number = element.dataset.liveLog;
      this.stream = element.dataset.logStream || "merged";
      this.offset = Number(element.dataset.logOffset) || 0;
      this.attempt = element.dataset.logAttempt ? Number(element.dataset.logAttempt) : undefined;
      this.chars = element.textContent.length;
      this.busy = false;
      watch("log:" + this.number).log = this;
    }

    // False when something is missing between what is shown and this piece.
    take(piece) {
      if (piece.attempt !== undefined) {
        if (this.attempt !== undefined && piece.attempt !== this.attempt) this.begin();
        this.attempt = piece.attempt;
      }
      if (piece.next_offset <= this.offset && piece.text) return true;
      if (piece.offset !== this.offset) return false;
      this.offset = piece.next_offset;
      this.element.dataset.logOffset = this.offset;
      this.element.dataset.logEof = piece.eof ? "1" : "0";
      if (piece.text) this.append(piece.text);
      return true;
    }

    // The job runs again, and so does its log.
    begin() {
      this.element.textContent = "";
      this.offset = this.chars = 0;
    }

    append(text) {
      this.element.append(text);
      this.chars += text.length;
      while (this.chars > MOST_LOG_CHARS && this.element.childNodes.length > 1) {
        const first = this.element.firstChild;
        this.chars -= first.textContent.length;
        first.remove();
        this.element.dataset.logCut = "1";
      }
      this.element.dispatchEvent(new CustomEvent("muster:log", { bubbles: true }));
    }

    async poll() {
      if (this.busy || !this.element.isConnected) return;
      this.busy = true;
      try {
        const query = new URLSearchParams({ stream: this.stream, offset: this.offset });
        const answer = await fetch("/api/v1/jobs/" + this.number + "/logs?" + query, {
          headers: { Accept: "application/json" }, credentials: "same-origin",
        });
        if (answer.ok) {
          goodAt = Date.now();
          this.take(await answer.json());
        }
      } catch (unreachable) { /* the dot and the banner say so */ }
      this.busy = false;
    }
  }

  // ------------------------------------------------------------ notices

  // Every page follows the banner and the bell; the dot and "may be out of date" are about what else the page shows.
  function showsMore() {
    return Array.from(topics.keys()).some((name) => name !== "site" && name !== "notifications");
  }

  function state() {
    if (paused) return "paused";
    const quiet = Date.now() - goodAt;
    if (signedOut || (quiet > STALE_MS && !opened)) return "offline";
    return opened && !degraded && quiet < SILENCE_MS ? "live" : "delayed";
  }

  function show() {
    const now = state();
    const seconds = Math.max(0, Math.round((Date.now() - goodAt) / 1000));
    const at = new Date(goodAt).toLocaleTimeString("en-GB", { timeZone: document.documentElement.dataset.zone || undefined });
    const words = {
      live: "live", paused: "paused", offline: "offline",
      delayed: seconds > 1 ? "delayed " + seconds + " s" : "delayed",
    };
    const dot = document.getElementById("live-dot");
    if (dot && showsMore()) {
      const word = dot.querySelector(".word") || dot;
      const label = "Live updates: " + words[now] + (now === "live" ? "" : ", last update at " + at);
      if (dot.dataset.state !== now) dot.dataset.state = now;
      if (word.textContent !== words[now]) word.textContent = words[now];
      dot.title = label + ". Click to " + (paused ? "resume." : "pause.");
      dot.setAttribute("aria-label", label);
      dot.setAttribute("aria-pressed", String(paused));
    }
    document.documentElement.dataset.live = now;
    const banner = document.getElementById("stale-banner");
    if (banner) {
      banner.hidden = !(showsMore() && !paused && !signedOut && Date.now() - goodAt > STALE_MS);
      const since = banner.querySelector("[data-stale-since]");
      if (since && !banner.hidden) since.textContent = "at " + at;
    }
  }

  function notice(id, text, withLink) {
    const banner = document.getElementById("banner");
    if (!banner || document.getElementById("live-" + id)) return;
    const box = document.createElement("div");
    box.id = "live-" + id;
    box.className = "banner t-pending";
    box.setAttribute("role", "status");
    const inner = document.createElement("div"), words = document.createElement("span");
    words.textContent = text;
    inner.append(words);
    if (withLink) {
      const link = document.createElement("a");
      link.href = location.href;
      link.textContent = "Sign in again";
      words.append(" ", link, ".");
    }
    box.append(inner);
    banner.append(box);
  }

  function leave() {
    if (signedOut) return;
    signedOut = true;
    if (socket) { socket.onclose = null; socket.close(); socket = null; opened = false; }
    notice("signed-out", "You are signed out; this page is out of date.", true);
    show();
  }

  let spokenAt = 0, unspoken = 0, speakTimer = 0;
  function speak(count) {
    unspoken += count;
    if (speakTimer) return;
    speakTimer = setTimeout(() => {
      speakTimer = 0;
      spokenAt = Date.now();
      const region = document.getElementById("live-status") || document.getElementById("announce");
      if (region) region.textContent = unspoken === 1 ? "1 change on this page" : unspoken + " changes on this page";
      unspoken = 0;
    }, Math.max(0, spokenAt + SPEAK_MS - Date.now()));
  }

  // ------------------------------------------------------------ pause, hidden tabs, the clock

  function setPaused(on) {
    paused = on;
    remember("muster-live", on ? "paused" : "");
    send({ op: on ? "pause" : "resume" });
    if (!on) regions.forEach((region) => { if (region.again) region.refresh(); });
    show();
  }

  function makeButton(dot) {
    dot.setAttribute("role", "button");
    dot.tabIndex = 0;
    dot.style.cursor = "pointer";
    dot.addEventListener("click", () => setPaused(!paused));
    dot.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); setPaused(!paused); }
    });
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => {
        if (!socket) return;
        socket.onmessage = socket.onclose = null;
        socket.close();
        socket = null;
        opened = false;
      }, HIDDEN_MS);
      return;
    }
    attempts = 0;
    goodAt = Math.max(goodAt, Date.now() - STALE_MS + 3000);  // a moment to catch up before it is called stale
    connect();
    regions.forEach((region) => { if (region.again) region.refresh(); });
  });

  window.addEventListener("online", () => { attempts = 0; connect(); });
  window.addEventListener("pagehide", () => { if (socket) { socket.onclose = null; socket.close(); socket = null; opened = false; } });
  window.addEventListener("pageshow", (event) => { if (event.persisted) { regions.forEach((region) => region.refresh()); connect(); } });

  setInterval(() => {
    if (document.hidden) return;
    if (socket && Date.now() - heardAt > SILENCE_MS) drop(0);
    releaseAll();
    show();
  }, 1000);
  setInterval(() => { if (!document.hidden) send({ op: "ping" }); }, PING_MS);
  setInterval(() => {
    if (document.hidden || opened || paused || signedOut) return;
    regions.forEach((region) => region.refresh());
    logs.forEach((log) => log.poll());
  }, POLL_MS);

  // ------------------------------------------------------------ start

  function scan() {
    document.querySelectorAll("[data-live-topic][data-live-url]").forEach((element) => {
      if (!regions.has(element)) regions.set(element, new Region(element));
    });
    document.querySelectorAll("[data-live-log]").forEach((element) => {
      if (!logs.has(element)) logs.set(element, new Log(element));
    });
    regions.forEach((region) => { if (!region.element.isConnected) forget(region); });
    logs.forEach((log, element) => { if (!element.isConnected) logs.delete(element); });
  }

  const dot = document.getElementById("live-dot");
  scan();
  document.addEventListener("htmx:after:swap", scan);
  if (dot && showsMore()) makeButton(dot);
  else if (dot) dot.hidden = true;
  connect();
  show();
  window.MusterLive = { pause: () => setPaused(true), resume: () => setPaused(false), state: state, scan: scan };
})();
