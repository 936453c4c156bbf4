// What a page does beyond what the server has drawn: it loads itself again when something has changed,
// follows the log, and draws curves that one can zoom.  Every page works without it.
"use strict";

(() => {
  const connection = document.getElementById("connection");
  const say = (text) => { if (connection.textContent !== text) connection.textContent = text; };

  // --- live parts: the same page is asked for again, and what differs takes its place

  let loading = false;
  let again = false;

  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status === 401) { say("Logged out: open the link of runner dash again."); return; }
      if (!answer.ok) { say("The daemon does not answer."); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live][id]")) replace(part, fresh.getElementById(part.id));
      say("Live");
    } catch {
      say("No connection");
    } finally {
      loading = false;
      if (again) { again = false; setTimeout(refresh, 500); }
    }
  }

  function replace(part, fresh) {
    if (!fresh || part.contains(document.activeElement) && document.activeElement.matches("input, select, button")) return;
    if (part.dataset.source === undefined) part.dataset.source = "";
    const text = fresh.innerHTML;
    if (part.dataset.source === text) return;
    const open = new Set([...part.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
    const chosen = new Set([...part.querySelectorAll("input:checked")].map((each) => each.value));
    part.replaceChildren(...[...fresh.childNodes].map((each) => document.importNode(each, true)));
    for (const each of part.querySelectorAll("details")) each.open = open.has(each.querySelector("summary").textContent);
    for (const each of part.querySelectorAll("input[type=checkbox]")) each.checked = chosen.has(each.value);
    part.dataset.source = text;
    if (part.dataset.curves) drawCurves(part);
  }

  if (document.querySelector("[data-live]") && window.EventSource) {
    const events = new EventSource(`${document.body.dataset.root}/live`);
    events.addEventListener("open", () => say("Live"));
    events.addEventListener("change", refresh);
    events.addEventListener("away", () => say("The daemon does not answer."));
    events.addEventListener("error", () => say("No connection"));
    addEventListener("pagehide", () => events.close());
  }

  // --- the log

  const log = document.getElementById("log");
  if (log) followLog();

  function followLog() {
    const follow = document.getElementById("log-follow");
    const search = document.getElementById("log-search");
    const limit = 400000;
    let text = log.textContent;

    const show = () => {
      const words = search.value;
      if (words) {
        const parts = text.split(words);
        log.replaceChildren();
        parts.forEach((part, number) => {
          log.append(part);
          if (number < parts.length - 1) {
            const mark = document.createElement("mark");
            mark.textContent = words;
            log.append(mark);
          }
        });
      } else log.textContent = text;
      if (follow.checked) log.scrollTop = log.scrollHeight;
    };

    search.addEventListener("input", () => { show(); const first = log.querySelector("mark"); if (first) first.scrollIntoView({ block: "nearest" }); });
    log.scrollTop = log.scrollHeight;

    // Of a progress bar, which overwrites its line, the last state.
    const settle = (all) => all.split("\n").map((line, number, lines) => {
      let end = line.length;
      while (end && line[end - 1] === "\r") end -= 1;
      const last = line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
      return last + (end < line.length && number === lines.length - 1 ? "\r" : "");
    }).join("\n");
    const clean = (piece) => piece.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, (each) => "\\x" + each.charCodeAt(0).toString(16).padStart(2, "0"));

    const look = async () => {
      try {
        if (follow.checked && !document.hidden) {
          const attempt = log.dataset.attempt;
          const answer = await fetch(`${log.dataset.log}?offset=${log.dataset.offset}${attempt ? `&attempt=${attempt}` : ""}`);
          if (answer.ok) {
            const piece = clean(await answer.text());
            log.dataset.offset = answer.headers.get("X-Next-Offset");
            const next = answer.headers.get("X-Next-Attempt");
            if (piece) { text = settle(text + piece).slice(-limit); show(); }
            if (!piece && next) {
              text += `\n--- attempt ${next} ---\n`;
              log.dataset.attempt = next;
              log.dataset.offset = "0";
            } else if (!attempt) log.dataset.attempt = answer.headers.get("X-Attempt");
          }
        }
      } catch { /* the page says that there is no connection */ }
      setTimeout(look, 2000);
    };
    setTimeout(look, 1000);
  }

  // --- curves

  const colour = (number) => getComputedStyle(document.documentElement).getPropertyValue(`--c${number % 8}`);

  async function drawCurves(part) {
    if (!window.uPlot) return;
    const answer = await fetch(part.dataset.curves);
    if (!answer.ok) return;
    const curves = await answer.json();
    for (const figure of part.querySelectorAll("figure[data-name]")) {
      const curve = curves[figure.dataset.name];
      const svg = figure.querySelector("svg");
      if (!curve || !svg || curve.x.length < 2) continue;
      const text = getComputedStyle(document.documentElement).getPropertyValue("--soft");
      const line = getComputedStyle(document.documentElement).getPropertyValue("--line");
      const bytes = figure.dataset.name.endsWith("bytes");
      const shown = (value) => value === null || value === undefined ? "-" : bytes ? `${(value / 2 ** 20).toFixed(1)} MiB` : Number(value.toPrecision(5)).toString();
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
      const box = document.createElement("div");
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", svg.getAttribute("aria-label"));
      svg.replaceWith(box);
      new uPlot({
        width: Math.max(figure.clientWidth, 200),
        height: 220,
        scales: { x: { time: !curve.steps } },
        axes: [axis, { ...axis, size: 72, values: (_plot, values) => values.map(shown) }],
        series: [
          { label: curve.steps ? "step" : "time" },
          { label: figure.dataset.name, stroke: colour(0), width: 1.5, value: (_plot, value) => shown(value) },
        ],
      }, [curve.x, curve.mean], box);
    }
  }

  for (const part of document.querySelectorAll("[data-curves]")) drawCurves(part);

  // --- a question before what cannot be taken back

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button && button.dataset.confirm && !confirm(button.dataset.confirm)) event.preventDefault();
  });
})();
