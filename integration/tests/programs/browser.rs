//! Chromium without a screen, driven through WebDriver, with keys and a pointer like a user's.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Tool, wait_until};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest time of one request to the browser. Most take milliseconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// With these arguments, the browser makes no requests of its own, and shows pages alike on every
/// machine.
const ARGUMENTS: [&str; 14] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--window-size=1400,1000",
];

/// A browser. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// The profile, and the log of the driver.
    _dir: TempDir,
}

/// The answer of a server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

// === impl Browser ===

impl Browser {
    pub(crate) fn start() -> Result<Self> {
        // The driver's error would not name what is missing.
        let chromium = Tool::Chromium.path()?;
        let dir = tempfile::tempdir()?;
        let log = dir.path().join("driver.log");
        let driver = Tool::Chromedriver
            .command()?
            .arg("--port=0")
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start chromedriver")?;
        let mut browser = Self {
            driver,
            port: 0,
            session: String::new(),
            _dir: dir,
        };
        browser.port = wait_until(DEADLINE, "chromedriver listens", || {
            let answer = fs::read_to_string(&log)?;
            let port = answer.split_once("successfully on port ");
            let digits = port.map(|(_, rest)| rest.split('.').next().unwrap_or_default());
            Ok(digits.and_then(|digits| digits.parse().ok()))
        })?;
        let profile = browser._dir.path().join("profile");
        let arguments = ARGUMENTS.map(str::to_owned);
        let profile = format!("--user-data-dir={}", profile.display());
        let arguments: Vec<_> = arguments.into_iter().chain([profile]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments, "binary": chromium },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = browser.ask("POST", "/session", Some(&wanted))?;
        let session = answer["sessionId"].as_str().context("no session")?;
        browser.session = format!("/session/{session}");
        Ok(browser)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = http(self.port, method, path, "localhost", &body)?;
        let answered: Value = serde_json::from_slice(&answer.body)
            .with_context(|| format!("{method} {path}: {answer:?}"))?;
        ensure!(answer.status == 200, "{method} {path}: {answered}");
        Ok(answered["value"].clone())
    }

    fn tell(&self, path: &str, what: &Value) -> Result<Value> {
        self.ask("POST", &format!("{}{path}", self.session), Some(what))
    }

    /// Opens a report, and waits until it is shown.
    pub(crate) fn open(&self, url: &str) -> Result<()> {
        self.tell("/url", &json!({ "url": url }))?;
        wait_until(PATIENCE, "the report is there", || {
            let failed = self.run("return document.getElementById('program').textContent")?;
            let failed = failed.as_str().unwrap_or_default();
            ensure!(!failed.starts_with("This report cannot"), "{failed}");
            self.true_now("!!window.xrayReport")
        })
    }

    pub(crate) fn open_file(&self, path: &Path) -> Result<()> {
        self.open(&format!("file://{}", path.display()))
    }

    /// Runs a script in the page. Returns its result.
    pub(crate) fn run(&self, script: &str) -> Result<Value> {
        self.tell("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The value of an expression.
    pub(crate) fn value(&self, expression: &str) -> Result<Value> {
        self.run(&format!("return {expression}"))
    }

    pub(crate) fn number(&self, expression: &str) -> Result<f64> {
        let value = self.value(expression)?;
        value
            .as_f64()
            .with_context(|| format!("{expression} is {value}"))
    }

    pub(crate) fn text(&self, expression: &str) -> Result<String> {
        let value = self.value(expression)?;
        let text = value
            .as_str()
            .with_context(|| format!("{expression} is {value}"))?;
        Ok(text.to_owned())
    }

    fn true_now(&self, expression: &str) -> Result<Option<()>> {
        Ok((self.value(expression)? == true).then_some(()))
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) -> Result<()> {
        wait_until(PATIENCE, expression, || self.true_now(expression))
    }

    /// Presses keys one after the other.
    pub(crate) fn press(&self, keys: &str) -> Result<()> {
        let strokes = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|what| json!({ "type": what, "value": key })));
        let strokes: Vec<_> = strokes.collect();
        self.act(&json!({ "type": "key", "id": "keys", "actions": strokes }))
    }

    /// Moves the pointer to a place in an element. The origin is its upper left corner.
    pub(crate) fn point(&self, element: &str, x: f64, y: f64) -> Result<()> {
        let to = self.place(element, x, y)?;
        self.pointer(&[to])
    }

    pub(crate) fn click(&self, element: &str, x: f64, y: f64) -> Result<()> {
        let to = self.place(element, x, y)?;
        let down = json!({ "type": "pointerDown", "button": 0 });
        self.pointer(&[to, down, json!({ "type": "pointerUp", "button": 0 })])
    }

    /// Presses the button at one place and releases it at another.
    pub(crate) fn drag(&self, element: &str, from: (f64, f64), to: (f64, f64)) -> Result<()> {
        let (from, to) = (
            self.place(element, from.0, from.1)?,
            self.place(element, to.0, to.1)?,
        );
        let down = json!({ "type": "pointerDown", "button": 0 });
        self.pointer(&[from, down, to, json!({ "type": "pointerUp", "button": 0 })])
    }

    /// Turns the wheel: away from the user for a negative number.
    pub(crate) fn wheel(&self, element: &str, x: f64, y: f64, by: i32) -> Result<()> {
        let place = self.place(element, x, y)?;
        let turn = json!({ "type": "scroll", "x": place["x"], "y": place["y"], "deltaX": 0, "deltaY": by });
        self.act(&json!({ "type": "wheel", "id": "wheel", "actions": [turn] }))
    }

    fn pointer(&self, actions: &[Value]) -> Result<()> {
        self.act(&json!({
            "type": "pointer", "id": "pointer", "parameters": { "pointerType": "mouse" }, "actions": actions,
        }))
    }

    fn act(&self, source: &Value) -> Result<()> {
        self.tell("/actions", &json!({ "actions": [source] }))?;
        Ok(())
    }

    fn place(&self, element: &str, x: f64, y: f64) -> Result<Value> {
        let script = format!(
            "const box = document.querySelector('{element}').getBoundingClientRect(); return [box.left, box.top]"
        );
        let corner = self.run(&script)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "WebDriver wants whole pixels"
        )]
        let at = |axis: usize, offset: f64| {
            (corner[axis].as_f64().unwrap_or(0.0) + offset).round() as i64
        };
        Ok(json!({ "type": "pointerMove", "duration": 0, "x": at(0, x), "y": at(1, y) }))
    }

    /// Checks that the page has logged no complaint, and made no request except to addresses that
    /// begin with one of `known`.
    pub(crate) fn ensure_quiet(&self, known: &[&str]) -> Result<()> {
        let answer = self.tell("/se/log", &json!({ "type": "browser" }))?;
        let answer = answer.as_array().context("no list")?;
        // The test itself reads pixels.
        let ours = |line: &&Value| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.contains("willReadFrequently"))
        };
        ensure!(answer.iter().all(|line| ours(&line)), "{answer:?}");
        let asked =
            self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")?;
        let asked = asked.as_array().context("no list")?;
        let mut strange = asked.iter().filter(|url| {
            let url = url.as_str().unwrap_or_default();
            !known.iter().any(|known| url.starts_with(known))
        });
        ensure!(strange.next().is_none(), "{asked:?}");
        Ok(())
    }

    /// The number of different colours in a canvas.
    pub(crate) fn colours(&self, canvas: &str) -> Result<f64> {
        self.run(&format!(
            "const canvas = document.getElementById('{canvas}');
             const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
             const found = new Set();
             for (let at = 0; at < data.length; at += 4) found.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
             return found.size"
        ))?
        .as_f64()
        .context("no number")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The processes that the driver does not end itself are in the driver's group.
        let _ = self.ask("DELETE", &self.session, None);
        let group = Pid::from_raw(self.driver.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.driver.wait();
    }
}

/// Makes a request to a server on this machine.
pub(crate) fn http(port: u16, method: &str, path: &str, host: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(
            reader.read_line(&mut head)? > 0,
            "the answer ends early: {head}"
        );
    }
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    };
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let mut body = Vec::new();
    if header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "the answer ends within");
            let len = u64::from_str_radix(line.trim(), 16)?;
            let before = body.len();
            reader.by_ref().take(len).read_to_end(&mut body)?;
            ensure!(
                (body.len() - before) as u64 == len,
                "the answer ends within"
            );
            reader.read_line(&mut line)?;
            if len == 0 {
                break;
            }
        }
    } else {
        let len = header("content-length").map_or(Ok(0), |len| len.parse::<u64>())?;
        reader.take(len).read_to_end(&mut body)?;
    }
    Ok(Answer { status, head, body })
}
