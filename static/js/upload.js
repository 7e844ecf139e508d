// The folder of the submit form: chosen or dropped, sent in pieces, and then chosen for the job.
(function () {
  "use strict";

  const field = document.getElementById("upload-field");
  const choose = document.getElementById("upload-choose");
  if (!field || !choose) return;
  const form = field.closest("form");
  const select = document.getElementById("f-upload");
  const input = document.getElementById("upload-input");
  const progress = document.getElementById("upload-progress");
  const problem = document.getElementById("upload-error");
  const submit = document.getElementById("submit-button");
  const mostBytes = Number(field.dataset.mostMib) * 1024 * 1024;
  const mostFiles = Number(field.dataset.mostFiles);
  const WAITS = [500, 1000, 2000, 4000];
  let under = null;  // of the upload under way

  choose.hidden = false;
  choose.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const files = Array.from(input.files).map((file) => ({ path: inner(file.webkitRelativePath), file }));
    const name = input.files[0] ? input.files[0].webkitRelativePath.split("/")[0] : "";
    input.value = "";
    if (files.length) send(name, files, []);
  });
  document.getElementById("upload-cancel").addEventListener("click", () => under?.abort());
  window.addEventListener("beforeunload", (event) => { if (under) event.preventDefault(); });

  const inner = (path) => path.split("/").slice(1).join("/");

  // ------------------------------------------------------------ dropped

  form.addEventListener("dragover", (event) => {
    if (!Array.from(event.dataTransfer.types).includes("Files")) return;
    event.preventDefault();
    field.classList.add("over");
  });
  form.addEventListener("dragleave", (event) => { if (!form.contains(event.relatedTarget)) field.classList.remove("over"); });
  form.addEventListener("drop", async (event) => {
    if (!Array.from(event.dataTransfer.types).includes("Files")) return;
    event.preventDefault();
    field.classList.remove("over");
    const entries = Array.from(event.dataTransfer.items).map((item) => item.webkitGetAsEntry()).filter(Boolean);
    if (entries.length !== 1 || !entries[0].isDirectory) { fail("Drop one folder."); return; }
    const files = [], empty = [];
    try { await walk(entries[0], [], files, empty); } catch (unreadable) { fail("The folder cannot be read: " + unreadable.message); return; }
    send(entries[0].name, files, empty);
  });

  async function walk(folder, above, files, empty) {
    const reader = folder.createReader();
    let count = 0;
    for (;;) {  // a reader gives at most a hundred at a time
      const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!entries.length) break;
      count += entries.length;
      for (const entry of entries) {
        const path = [...above, entry.name];
        if (entry.isDirectory) await walk(entry, path, files, empty);
        else files.push({ path: path.join("/"), file: await new Promise((done, failed) => entry.file(done, failed)) });
        if (files.length > mostFiles) throw new Error("it has more than " + mostFiles.toLocaleString("en") + " files");
      }
    }
    if (!count && above.length) empty.push(above.map(written).join("/"));
  }

  // ------------------------------------------------------------ sent

  // A name as the API writes it: a backslash twice, and bytes that cannot be shown as \xNN.
  function written(name) {
    return Array.from(name, (one) => {
      if (one === "\\") return "\\\\";
      if (!/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cn}\p{Co}\p{Cs}]/u.test(one)) return one;
      return Array.from(new TextEncoder().encode(one), (byte) => "\\x" + byte.toString(16).padStart(2, "0")).join("");
    }).join("");
  }

  async function call(method, path, body, type) {
    const headers = { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value, "Content-Type": type || "application/json" };
    for (let tried = 0; ; tried += 1) {
      let answer = null, said = "";
      try {
        answer = await fetch(field.dataset.url + path, { method, headers, body, signal: under.signal });
        if (answer.ok) return answer.status === 204 ? null : answer.json();
        const found = await answer.json().catch(() => ({}));
        const errors = (found.errors || []).map((one) => one.message).slice(0, 5);
        said = [...(errors.length ? errors : [found.detail || answer.statusText]), found.way_out || ""].join(" ").trim();
      } catch (error) {
        if (error.name === "AbortError" || error.name === "NotReadableError") throw error;
        said = "The portal was not reached.";
      }
      if (tried >= WAITS.length || (answer && ![429, 502, 503, 504].includes(answer.status))) throw new Error(said);
      await new Promise((done) => setTimeout(done, WAITS[tried]));
    }
  }

  // A browser does not say what can be run: what begins with #!, or is a program of Linux, can.
  async function runs(file) {
    const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
    return (start[0] === 0x23 && start[1] === 0x21) || (start[0] === 0x7f && start[1] === 0x45 && start[2] === 0x4c && start[3] === 0x46);
  }

  async function send(name, files, folders) {
    if (under) return;
    const size = files.reduce((sum, one) => sum + one.file.size, 0);
    if (!files.length) { fail("The folder has no file."); return; }
    if (files.length > mostFiles) { fail("The folder has " + files.length.toLocaleString("en") + " files; at most " + mostFiles.toLocaleString("en") + " are taken."); return; }
    if (mostBytes && size > mostBytes) { fail("The folder has " + bytes(size) + "; at most " + bytes(mostBytes) + " are taken."); return; }
    fail("");
    under = new AbortController();
    show(0, "Preparing " + files.length.toLocaleString("en") + " files");
    let begun = null;
    try {
      const byPath = new Map();
      const listed = [];
      for (const one of files) {
        const path = one.path.split("/").map(written).join("/");
        byPath.set(path, one.file);
        listed.push({ path, size: one.file.size, executable: await runs(one.file) });
      }
      begun = await call("POST", "", JSON.stringify({ name, files: listed, folders }));
      await sendPieces(begun, byPath, size);
      const row = await call("POST", "/" + begun.id + "/finish");
      choosing(row);
    } catch (error) {
      const stopped = error.name === "AbortError";
      under = new AbortController();  // the calls of before are over; this one is to go through
      if (begun) await call("DELETE", "/" + begun.id).catch(() => undefined);
      fail(stopped ? "" : error.name === "NotReadableError" ? "A file changed or cannot be read. Choose the folder again." : error.message);
    } finally {
      under = null;
      progress.hidden = true;
      choose.disabled = submit.disabled = false;
    }
  }

  async function sendPieces(begun, byPath, size) {
    let parts = [], held = 0, number = 0, sent = 0;
    const flush = async () => {
      await call("PUT", "/" + begun.id + "/pieces/" + number, new Blob(parts), "application/octet-stream");
      sent += held; number += 1; parts = []; held = 0;
      show(100 * sent / size, bytes(sent) + " of " + bytes(size));
    };
    for (const path of begun.order) {
      const file = byPath.get(path);
      for (let at = 0; at < file.size;) {
        const part = file.slice(at, at + begun.piece_bytes - held);
        parts.push(part); held += part.size; at += part.size;
        if (held === begun.piece_bytes) await flush();
      }
    }
    if (held) await flush();
  }

  // ------------------------------------------------------------ shown

  function choosing(row) {
    const option = new Option(row.name + ", " + row.files.toLocaleString("en") + (row.files === 1 ? " file, " : " files, ") + bytes(row.size_bytes), row.id, true, true);
    select.add(option, 1);
    select.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function show(percent, text) {
    progress.hidden = false;
    choose.disabled = submit.disabled = true;
    progress.querySelector("progress").value = percent;
    progress.querySelector("[role=status]").textContent = text;
  }

  function fail(text) { problem.textContent = text; problem.hidden = !text; }

  function bytes(count) {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
    return (at ? count.toFixed(1) : count) + " " + units[at];
  }
})();
