//! The report on a server, with the whole trace behind it.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::browser::{Answer, Browser, http};
use crate::runs;
use crate::scene::{NOBODY, Running, Scene};

/// A server that has printed its address.
struct Served {
    running: Running,
    url: String,
    port: u16,
    /// The path of the report, with a slash at both ends.
    path: String,
}

impl Served {
    fn start(scene: &Scene, file: &str) -> Result<Self> {
        let cli = scene.alone()?;
        Self::of(cli.start(["view", file, "--no-browser"])?)
    }

    fn of(mut running: Running) -> Result<Self> {
        let out = running.printing();
        let url = running.until("the address is printed", || {
            let printed = fs::read_to_string(&out)?;
            Ok(printed.strip_suffix('\n').map(str::to_owned))
        })?;
        let rest = url
            .strip_prefix("http://127.0.0.1:")
            .context("another address")?;
        let (port, path) = rest.split_once('/').context("no path")?;
        Ok(Self {
            port: port.parse()?,
            path: format!("/{path}"),
            url,
            running,
        })
    }

    fn get(&self, path: &str) -> Result<Answer> {
        http(
            self.port,
            "GET",
            &format!("{}{path}", self.path),
            "127.0.0.1",
            "",
        )
    }

    /// Ends the server by Ctrl-C.
    fn end(self) -> Result<()> {
        self.running.signal(Signal::SIGINT)?;
        let ran = self.running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        Ok(())
    }
}

#[test]
fn strangers_get_nothing() -> Result<()> {
    let scene = Scene::new()?;
    runs::small(&scene.path("run.xtrace"))?;
    let served = Served::start(&scene, "run.xtrace")?;
    let ask = |method: &str, path: &str, host: &str| -> Result<u16> {
        Ok(http(served.port, method, path, host, "")?.status)
    };
    let own = served.path.clone();
    ensure!(own.len() == 34, "{own}");
    for (status, method, path, host) in [
        (200, "GET", own.as_str(), "127.0.0.1"),
        (200, "GET", own.as_str(), "localhost"),
        // A request with another host name was led here.
        (421, "GET", own.as_str(), "rebound.example"),
        (421, "GET", own.as_str(), "127.0.0.1.example"),
        (404, "GET", "/", "127.0.0.1"),
        (404, "GET", "/favicon.ico", "127.0.0.1"),
        (404, "GET", "/window?since=0&until=9", "127.0.0.1"),
        (404, "GET", &format!("/{}/", "0".repeat(32)), "127.0.0.1"),
        (
            404,
            "GET",
            &format!("{}x/", own.trim_end_matches('/')),
            "127.0.0.1",
        ),
        (404, "GET", &format!("{own}../etc/passwd"), "127.0.0.1"),
        (404, "GET", &format!("{own}run.xtrace"), "127.0.0.1"),
        (405, "POST", own.as_str(), "127.0.0.1"),
        (400, "GET", &format!("{own}window"), "127.0.0.1"),
        (
            400,
            "GET",
            &format!("{own}window?since=-1&until=x"),
            "127.0.0.1",
        ),
        (
            200,
            "GET",
            &format!("{own}window?since=0&until=18446744073709551615"),
            "127.0.0.1",
        ),
    ] {
        let got = ask(method, path, host)?;
        ensure!(
            got == status,
            "{method} {path} of {host}: {got} instead of {status}"
        );
    }
    let page = served.get("")?;
    for header in [
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "frame-ancestors 'none'",
        "referrer-policy: no-referrer",
    ] {
        ensure!(
            page.head.to_lowercase().contains(header),
            "no {header} in {}",
            page.head
        );
    }
    // Other machines get no connection.
    let listening = fs::read_to_string("/proc/net/tcp")?;
    let here = format!("0100007F:{:04X}", served.port);
    ensure!(
        listening.contains(&here) && !listening.contains(&format!("00000000:{:04X}", served.port))
    );
    served.end()
}

/// A request that is nonsense or far too long ends its connection and nothing else.
#[test]
fn nonsense_is_refused_and_costs_nothing() -> Result<()> {
    let scene = Scene::new()?;
    runs::small(&scene.path("run.xtrace"))?;
    let served = Served::start(&scene, "run.xtrace")?;
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000));
    for nonsense in [
        b"\x16\x03\x01\x02\x00".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        long.into_bytes(),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port))?;
        // The connection may be cut before all bytes are sent.
        let _ = stream.write_all(&nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        ensure!(
            !answer.starts_with(b"HTTP/1.1 2"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    // Silent connections take room from others only for a short time. Fewer of them than the limit
    // take none at all.
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(("127.0.0.1", served.port)))
        .collect();
    ensure!(served.get("")?.status == 200);
    drop(silent);
    served.end()
}

#[test]
fn zooming_in_shows_every_call() -> Result<()> {
    let scene = Scene::new()?;
    // More calls than a page has one by one.
    runs::large(&scene.path("run.xtrace"), 3_000_000)?;
    let served = Served::start(&scene, "run.xtrace")?;
    let browser = Browser::start()?;
    browser.open(&format!("{}#timeline", served.url))?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    let summed = "xrayReport.timeline.shown.summed(xrayReport.timeline.view.from, xrayReport.timeline.view.to).calls";
    ensure!(browser.number(summed)? > 0.0);
    // Presses keys until a thousandth of the time is in view.
    for _ in 0..17 {
        browser.press("w")?;
    }
    browser.until(&format!("xrayReport.timeline.detail && {summed} === 0"))?;
    // Every call in view is drawn, as in the trace.
    let view = browser.value("xrayReport.timeline.view")?;
    let [from, to] = ["from", "to"].map(|end| view[end].as_f64().unwrap_or_default());
    let drawn = browser.run(
        "const { view, shown } = xrayReport.timeline;
         let calls = 0;
         for (const thread of shown.threads) for (const lane of thread.lanes)
           for (const start of lane.start) if (start >= Math.ceil(view.from) && start < Math.floor(view.to)) calls++;
         return calls",
    )?;
    let [since, until] = [from.ceil(), to.floor()].map(|ns| format!("{ns}ns"));
    let table = scene.alone()?.ok([
        "account",
        "run.xtrace",
        "--format",
        "json",
        "--since",
        &since,
        "--until",
        &until,
    ])?;
    let table: serde_json::Value = serde_json::from_str(&table)?;
    let calls: u64 = crate::scene::rows(&table, "rows")?
        .iter()
        .filter_map(|row| row["calls"].as_u64())
        .sum();
    ensure!(calls > 10 && drawn == calls, "{drawn} calls of {calls}");
    ensure!(reaching_beyond(&browser)? > 4, "no long calls");
    browser.ensure_quiet(&[&served.url])?;
    served.end()
}

/// Checks that the calls that are open at the begin or the end of the timeline's detail are the
/// same in the whole timeline, if the whole timeline has them. Returns their number. Every call of
/// the trace has an exit, so a call of the detail has an exit or goes on after the detail.
fn reaching_beyond(browser: &Browser) -> Result<u64> {
    let found = browser.run(
        "const { detail, lines } = xrayReport.timeline;
         const columns = ['start', 'end', 'what', 'off', 'ready'];
         for (const { lanes } of detail.lines.threads) for (const { end, what, goesOn } of lanes)
             for (let at = 0; at < what.length; at++) {
                 if (what[at] % 2 && !goesOn[at]) return `a call without an exit ends at ${end[at]}`;
                 if (goesOn[at] && end[at] < detail.to) return `a call goes on at ${end[at]}`;
             }
         const calls = (lines, thread, depth, time) => {
             const lane = lines.lane(thread, depth);
             const at = lane ? lane.start.findIndex((start, at) => start <= time && time < lane.end[at]) : -1;
             return at < 0 ? null : columns.map((column) => lane[column][at] ?? 0).join();
         };
         let count = 0;
         for (const thread of lines.threads) for (const { depth } of thread.lanes)
             for (const time of [detail.from, detail.to]) {
                 const whole = calls(lines, thread.number, depth, time);
                 const here = calls(detail.lines, thread.number, depth, time);
                 if (whole && whole !== here) return `${whole} is not ${here}`;
                 if (whole) count++;
                 const { start, before } = detail.lines.lane(thread.number, depth) ?? { start: [], before: [0] };
                 if (before.length !== start.length + 1) return `${before.length} sums`;
                 if (!start.every((its, at) => !at || start[at - 1] <= its)) return 'no order';
             }
         return count",
    )?;
    found.as_u64().with_context(|| found.to_string())
}

#[test]
fn zooming_in_shows_every_time_without_a_processor() -> Result<()> {
    const WAITS: u64 = 60_000;
    let scene = Scene::new()?;
    // More times than a page has.
    runs::waiting(&scene.path("run.xtrace"), WAITS)?;
    let served = Served::start(&scene, "run.xtrace")?;
    let browser = Browser::start()?;
    browser.open(&format!("{}#timeline", served.url))?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    let [kept, left_out] = ["off.start.length", "offLeftOut"]
        .map(|of| browser.number(&format!("xrayReport.timeline.lines.threads[0].{of}")));
    let (kept, left_out) = (kept?, left_out?);
    // There are 600 times of each length.
    ensure!((39_000.0..=40_000.0).contains(&kept), "{kept}");
    ensure!(kept + left_out == WAITS as f64, "{kept} and {left_out}");
    let notes = browser.text("document.getElementById('notes').textContent")?;
    let note = "times without a processor, shorter than 134 ns. Zoom in to see them.";
    ensure!(notes.contains(note), "{notes}");
    // For measurements.
    let took = browser.number("xrayReport.timeline.surface.took")?;
    eprintln!("{kept} times, drawn in {took} ms");
    // Presses keys until about an eighth of the time is in view.
    for _ in 0..5 {
        browser.press("w")?;
    }
    browser.until("xrayReport.timeline.detail && xrayReport.timeline.shown.offLeftOut === 0")?;
    let found = browser.run(
        "const { view, shown } = xrayReport.timeline;
         const [from, to] = [Math.ceil(view.from / 400), Math.floor(view.to / 400)];
         const { off } = shown.threads[0];
         const lengths = [];
         for (let wait = from; wait < to; wait++) {
             const found = off.at(wait * 400 + 150);
             if (found?.end - found?.start !== 100 + (wait % 100)) return wait;
             lengths.push(found.end - found.start);
         }
         return [lengths.length > 7_000, Math.min(...lengths)]",
    )?;
    ensure!(found == serde_json::json!([true, 100]), "{found}");
    // The thread has no event in this time.
    ensure!(
        reaching_beyond(&browser)? == 80,
        "not 40 calls at both ends"
    );
    browser.ensure_quiet(&[&served.url])?;
    served.end()
}

/// The trace goes to Perfetto's page when the user asks for that, in the form of `convert`, and
/// only after that page has answered.
#[test]
fn perfetto_is_handed_the_trace() -> Result<()> {
    let scene = Scene::new()?;
    runs::small(&scene.path("run.xtrace"))?;
    scene
        .alone()?
        .ok(["convert", "run.xtrace", "-o", "run.pftrace"])?;
    let converted = fs::read(scene.path("run.pftrace"))?;
    let served = Served::start(&scene, "run.xtrace")?;
    let answer = served.get("trace.pftrace")?;
    ensure!(
        answer.status == 200 && answer.body == converted,
        "{}",
        answer.head
    );
    let browser = Browser::start()?;
    browser.open(&served.url)?;
    // A window that answers like Perfetto's page. The test has no network.
    browser.run(
        "window.heard = [];
         window.open = (url) => { heard.push(['open', url]); return window; };
         window.postMessage = (message, origin) => {
           heard.push([message === 'PING' ? message : message.perfetto.buffer.byteLength, origin]);
           // The second call is answered, but first by somebody else.
           if (message !== 'PING' || heard.length < 3) return;
           dispatchEvent(new MessageEvent('message', { data: 'PONG', origin: 'https://elsewhere.example', source: window }));
           dispatchEvent(new MessageEvent('message', { data: 'PONG', origin, source: window }));
         };",
    )?;
    browser.click("#perfetto", 10.0, 10.0)?;
    browser.until("heard.length > 3")?;
    let received = browser.value("heard")?;
    let perfetto = "https://ui.perfetto.dev";
    let ping = serde_json::json!(["PING", perfetto]);
    ensure!(
        received[0] == serde_json::json!(["open", perfetto])
            && received[1] == ping
            && received[2] == ping,
        "{received}"
    );
    ensure!(
        received[3] == serde_json::json!([converted.len(), perfetto]),
        "{received}"
    );
    browser.until("!document.getElementById('perfetto').disabled")?;
    browser.ensure_quiet(&[&served.url])?;
    served.end()
}

/// The address does not reach the browser in a way that other users can see.
#[test]
fn a_browser_is_opened_where_there_is_a_screen() -> Result<()> {
    let scene = Scene::public()?;
    runs::small(&scene.path("run.xtrace"))?;
    let folder = scene.path("bin");
    fs::create_dir(&folder)?;
    let opened = scene.path("opened");
    fs::create_dir(&opened)?;
    fs::set_permissions(&opened, Permissions::from_mode(0o777))?;
    let script = folder.join("xdg-open");
    let [reported, copied] = ["told", "copied"].map(|name| opened.join(name));
    // The copy gets its name when it is complete.
    fs::write(
        &script,
        format!(
            "#!/bin/sh\ncp \"$1\" {c}.new\necho \"$@\" > {t}\nmv {c}.new {c}\n",
            t = reported.display(),
            c = copied.display()
        ),
    )?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    let cli = scene.alone()?.as_user(NOBODY);
    let mut command = cli.command(["view", "run.xtrace"]);
    command
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .env("DISPLAY", ":7");
    let served = Served::of(Running::start(command)?)?;
    integration::wait_until(integration::DEADLINE, "a browser is opened", || {
        Ok(copied.exists().then_some(()))
    })?;
    let (reported, leading) = (fs::read_to_string(&reported)?, fs::read_to_string(&copied)?);
    ensure!(
        !reported.contains(served.path.trim_matches('/')),
        "{reported}"
    );
    ensure!(leading.contains(&served.url), "{leading}");
    let file = reported.trim().to_owned();
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o077 == 0);
    served.end()?;
    ensure!(!fs::exists(&file)?, "{file} is left");
    // Root gets no browser, nor does any user without a screen.
    for (name, value, uid) in [("DISPLAY", ":7", 0), ("DISPLAY", "", NOBODY)] {
        fs::remove_file(&copied).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let cli = scene.alone()?.as_user(uid);
        let mut command = cli.command(["view", "run.xtrace"]);
        command
            .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
            .env_remove("WAYLAND_DISPLAY")
            .env(name, value);
        let served = Served::of(Running::start(command)?)?;
        ensure!(served.get("")?.status == 200);
        served.end()?;
        ensure!(!copied.exists(), "{name}={value} of {uid}");
    }
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_reported_at_once() -> Result<()> {
    let scene = Scene::new()?;
    runs::small(&scene.path("run.xtrace"))?;
    let served = Served::start(&scene, "run.xtrace")?;
    let port = served.port.to_string();
    let refused = scene
        .alone()?
        .run(["view", "run.xtrace", "--no-browser", "--port", &port])?;
    refused.failed(1, &["cannot listen on port", &port])?;
    served.end()
}
