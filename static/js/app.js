// What every page shares: theme switch, menus, dialogs, copying, counting durations, keys, log scrolling.
(function () {
  "use strict";

  const $ = (selector, root) => (root || document).querySelector(selector);
  const $$ = (selector, root) => Array.from((root || document).querySelectorAll(selector));
  const NEXT = { system: "dark", dark: "light", light: "system" };
  const ICON = { system: "auto", dark: "moon", light: "sun" };
  const WORD = { system: "system", dark: "dark", light: "light" };

  // ------------------------------------------------------------ colours

  function applyTheme(theme) {
    const root = document.documentElement;
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    try { localStorage.setItem("muster-theme", theme); } catch (blocked) { /* private windows may refuse */ }
    const form = $("#theme-form");
    if (!form) return;
    form.elements.theme.value = NEXT[theme];
    const button = $("button", form);
    button.title = "Theme: " + WORD[theme];
    button.setAttribute("aria-label", "Theme: " + WORD[theme] + ". Change");
    $("use", button).setAttribute("href", "#i-" + ICON[theme]);
  }

  document.addEventListener("submit", (event) => {
    if (event.target.id !== "theme-form") return;
    event.preventDefault();
    const data = new FormData(event.target);
    applyTheme(data.get("theme"));
    fetch(event.target.action, { method: "POST", body: data, headers: { "X-Requested-With": "fetch" } });
  });

  // ------------------------------------------------------------ menus and dialogs

  document.addEventListener("click", (event) => {
    $$("details.menu[open]").forEach((menu) => {
      if (!menu.contains(event.target) || event.target.closest("[data-help]")) menu.open = false;
    });
    if (event.target.closest("[data-help]")) $("#help")?.showModal();
    const opener = event.target.closest("[data-dialog]");
    if (opener) {
      const dialog = document.getElementById(opener.dataset.dialog);
      if (dialog) { event.preventDefault(); dialog.showModal(); }
    }
    const closer = event.target.closest("[data-close]");
    if (closer) { event.preventDefault(); closer.closest("dialog").close(); }
    if (event.target.tagName === "DIALOG") event.target.close();
  });

  // A form that was refused comes back as it was sent.
  $$("dialog[data-open]").forEach((dialog) => dialog.showModal());

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = $("details.menu[open]");
    if (menu) { menu.open = false; $("summary", menu).focus(); }
  });

  // ------------------------------------------------------------ copying

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const text = source.value !== undefined ? source.value : source.textContent;
    const words = $("[data-word]", button) || button;
    const before = words.textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(text.trim());
    } catch (refused) {  // no clipboard on plain http: select it, so that one key does
      const range = document.createRange();
      if (source.select) source.select();
      else { range.selectNodeContents(source); const s = getSelection(); s.removeAllRanges(); s.addRange(range); }
      done = document.execCommand("copy");
    }
    words.textContent = done ? "Copied" : "Selected";
    announce(done ? "Copied" : "Selected: press Ctrl+C");
    setTimeout(() => { words.textContent = before; }, 1500);
  });

  function announce(text) { const region = $("#announce"); if (region) region.textContent = text; }

  // ------------------------------------------------------------ durations that go on

  function duration(seconds) {
    const parts = [];
    let left = Math.max(0, Math.floor(seconds));
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
      const amount = Math.floor(left / size);
      left -= amount * size;
      if (amount || parts.length) parts.push(amount + unit);
      if (parts.length === 2) break;
    }
    while (parts.length > 1 && parts[parts.length - 1].startsWith("0")) parts.pop();
    return parts.length === 1 && parts[0].endsWith("s") ? parts[0].slice(0, -1) + " s" : parts.join(" ") || "0 s";
  }

  function tick() {
    if (document.hidden) return;
    const now = Date.now();
    $$("[data-since]").forEach((node) => {
      const text = duration((now - Date.parse(node.dataset.since)) / 1000);
      if (node.textContent !== text) node.textContent = text;
    });
    $$("time[data-ago]").forEach((node) => {
      const seconds = (now - Date.parse(node.dateTime)) / 1000;
      const text = Math.abs(seconds) < 5 ? "just now" : seconds > 0 ? duration(seconds) + " ago" : "in " + duration(-seconds);
      if (node.textContent !== text) node.textContent = text;
    });
  }
  setInterval(tick, 1000);

  // ------------------------------------------------------------ logs: follow, pause, wrap

  const nearEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40;

  function watchLog(log) {
    if (log.dataset.watched) return;
    log.dataset.watched = "1";
    const follow = $("[data-log-follow]");
    const setFollow = (on) => {
      log.dataset.follow = on ? "true" : "false";
      if (follow) {
        follow.setAttribute("aria-pressed", String(on));
        $("[data-word]", follow).textContent = on ? "Following" : "Follow";
        $("use", follow).setAttribute("href", on ? "#i-pause" : "#i-down");
      }
      if (on) log.scrollTop = log.scrollHeight;
    };
    new MutationObserver(() => { if (log.dataset.follow === "true") log.scrollTop = log.scrollHeight; })
      .observe(log, { childList: true, characterData: true, subtree: true });
    log.addEventListener("wheel", (event) => { if (event.deltaY < 0) setFollow(false); }, { passive: true });
    log.addEventListener("scroll", () => { if (nearEnd(log) && log.dataset.follow !== "true" && log.dataset.touched) setFollow(true); });
    log.addEventListener("keydown", (event) => {
      if (["PageUp", "ArrowUp", "Home"].includes(event.key)) setFollow(false);
      if (event.key === "End") setFollow(true);
    });
    if (follow) follow.addEventListener("click", () => setFollow(log.dataset.follow !== "true"));
    const wrap = $("[data-log-wrap]");
    if (wrap) wrap.addEventListener("click", () => {
      const on = log.classList.toggle("wrap");
      wrap.setAttribute("aria-pressed", String(on));
      try { localStorage.setItem("muster-log-wrap", on ? "1" : "0"); } catch (blocked) { /* fine */ }
    });
    try { if (wrap && localStorage.getItem("muster-log-wrap") === "1") wrap.click(); } catch (blocked) { /* fine */ }
    setFollow(log.dataset.follow !== "false");
  }

  // ------------------------------------------------------------ tables: pick all, rows by key

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) {
      $$("input[name='job']:not(:disabled)", event.target.closest("form")).forEach((box) => { box.checked = event.target.checked; });
    }
    const form = event.target.closest("[data-bulk]");
    if (form) countChosen(form);
    const auto = event.target.closest("form[data-auto]");
    if (auto && event.target.matches("select")) auto.requestSubmit();
  });

  // The verbs appear once something is chosen.
  function countChosen(form) {
    const count = $$("input[name='job']:checked", form).length;
    const bar = $("#bulk-bar", form);
    bar.hidden = !count;
    $$("[data-bulk-action]", bar).forEach((button) => { button.disabled = !count; });
    $("[data-bulk-count]", bar).textContent = count === 1 ? "1 job selected" : count + " jobs selected";
  }

  // ------------------------------------------------------------ a grid one walks with arrows

  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("[role='gridcell']");
    if (!cell || !event.key.startsWith("Arrow")) return;
    const grid = cell.closest("[role='grid']");
    const rows = $$("[role='row']", grid).map((row) => $$("[role='gridcell']", row)).filter((row) => row.length);
    const at = rows.findIndex((row) => row.includes(cell));
    const index = rows[at].indexOf(cell);
    let next = null;
    if (event.key === "ArrowRight") next = rows[at][index + 1] || rows[at + 1]?.[0];
    if (event.key === "ArrowLeft") next = rows[at][index - 1] || rows[at - 1]?.[rows[at - 1].length - 1];
    if (event.key === "ArrowDown") next = rows[at + 1] && rows[at + 1][Math.min(index, rows[at + 1].length - 1)];
    if (event.key === "ArrowUp") next = rows[at - 1] && rows[at - 1][Math.min(index, rows[at - 1].length - 1)];
    if (!next) return;
    event.preventDefault();
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  // ------------------------------------------------------------ keys

  const keysOn = () => { try { return localStorage.getItem("muster-keys") !== "0"; } catch (blocked) { return true; } };
  const GO = { h: "/", s: "/submit/", j: "/jobs/", m: "/cluster/", q: "/queues/", u: "/quota/" };
  let went = 0;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !keysOn()) return;
    const target = event.target;
    if (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || $("dialog[open]")) return;
    const key = event.key;
    if (Date.now() - went < 1200) {
      went = 0;
      if (GO[key]) { event.preventDefault(); location.href = GO[key]; }
      return;
    }
    const press = (selector) => { const node = $(selector); if (node) { event.preventDefault(); node.click(); } };
    if (key === "g") went = Date.now();
    else if (key === "?") { event.preventDefault(); $("#help")?.showModal(); }
    else if (key === "/") { const field = $("[data-search]") || $("main textarea, main input:not([type=hidden]):not([type=checkbox])"); if (field) { event.preventDefault(); field.focus(); } }
    else if (key === "t") press("#theme-form button");
    else if (key === "w") press(".tabs a[data-key='w']");
    else if (key === "l") press(".tabs a[data-key='l']");
    else if (key === "c") press("[data-key='c']");
    else if (key === "[" || key === "]") {
      const tabs = $$(".tabs a");
      const now = tabs.findIndex((tab) => tab.hasAttribute("aria-current"));
      tabs[now + (key === "]" ? 1 : -1)]?.click();
    } else if (key === "j" || key === "k") {
      const links = $$("main table a.name");
      const now = links.indexOf(document.activeElement);
      const next = links[now < 0 ? 0 : now + (key === "j" ? 1 : -1)];
      if (next) { event.preventDefault(); next.focus(); }
    } else if (key === "o" && target.matches?.("a.name")) target.click();
  });

  // ------------------------------------------------------------ demo accounts: one click signs in

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-fill-name]");
    if (!button) return;
    const form = $("#signin-form");
    form.elements.username.value = button.dataset.fillName;
    form.elements.password.value = button.dataset.fillPassword;
    form.requestSubmit();
  });

  // ------------------------------------------------------------ start

  function ready(root) {
    $$("[data-live-log]", root).forEach(watchLog);
    $$("[data-bulk]", root).forEach(countChosen);
    const zone = $("[data-browser-zone]", root);
    if (zone && !zone.dataset.ready) {
      zone.dataset.ready = "1";
      const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
      if (name) {
        const field = document.getElementById(zone.dataset.browserZone);
        const offer = () => { zone.hidden = field.value.trim() === name; };
        zone.textContent = "Use the zone of this browser: " + name;
        zone.addEventListener("click", () => { field.value = name; field.focus(); offer(); });
        field.addEventListener("input", offer);
        offer();
      }
    }
  }
  ready(document);
  document.addEventListener("htmx:after:swap", () => ready(document));
  document.addEventListener("muster:swapped", () => ready(document));

  $("#submit-form [aria-invalid='true']")?.focus();

  const keys = $("#keys-on");
  if (keys) {
    keys.checked = keysOn();
    keys.addEventListener("change", () => { try { localStorage.setItem("muster-keys", keys.checked ? "1" : "0"); } catch (blocked) { /* fine */ } });
  }
})();
