// Before the first paint: the colours chosen on this machine, where no account says.
(function () {
  "use strict";
  var root = document.documentElement;
  var stored = null;
  try { stored = localStorage.getItem("muster-theme"); } catch (blocked) { /* private windows may refuse */ }
  if (root.hasAttribute("data-signed-in")) {
    try { localStorage.setItem("muster-theme", root.dataset.theme || "system"); } catch (blocked) { /* fine */ }
  } else if (stored === "light" || stored === "dark") {
    root.dataset.theme = stored;
  }
})();
