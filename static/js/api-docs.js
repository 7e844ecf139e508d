// The tool that draws the API's description has its own dark colours: it follows the theme of the portal.
(function () {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => root.classList.toggle("dark-mode", root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  follow();
  system.addEventListener("change", follow);
})();
