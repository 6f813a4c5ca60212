//! The daemon's metrics of itself and its sessions over HTTP.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, Tool, build, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{Cli, Scene, rows};
use crate::scrape::{Samples, metrics_of, page, samples, send};

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "400"];
const DURATION: &str = "xrayd_function_duration_seconds";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";

/// The labels of a session.
fn labels(target: &Target) -> String {
    format!("pid=\"{}\",process=\"counted\"", target.pid())
}

/// Values of the samples with this name, by function without its parameters.
fn by_function(samples: &Samples, name: &str, target: &Target) -> Result<BTreeMap<String, f64>> {
    let start = format!("{name}{{{},", labels(target));
    let rows = samples.of(&start).map(|(sample, value)| {
        let (_, function) = sample.split_once("function=\"").context("no function")?;
        let end = function.find(['(', '"']).context("no end")?;
        Ok((function[..end].to_owned(), value))
    });
    rows.collect()
}

/// Waits until a histogram has every call of the program.
fn until_all_are_there(
    address: SocketAddr,
    target: &Target,
    truth: &GroundTruth,
) -> Result<Samples> {
    let called = truth.functions.iter().cloned().zip(truth.calls());
    #[expect(clippy::cast_precision_loss, reason = "some thousand calls")]
    let called = called.map(|(name, calls)| (name, calls as f64));
    let called: BTreeMap<String, f64> = called.filter(|(_, calls)| *calls > 0.0).collect();
    let name = format!("{DURATION}_count");
    wait_until(DEADLINE, "all calls are in histograms", || {
        let samples = samples(address)?;
        let counts = by_function(&samples, &name, target)?;
        let over = counts
            .iter()
            .find(|(name, count)| called.get(*name) < Some(count));
        ensure!(over.is_none(), "{over:?}, of {called:?}");
        Ok((counts == called).then_some(samples))
    })
}

/// Checks that the buckets are in order, and have as many calls as the count.
fn ensure_histograms(samples: &Samples, target: &Target) -> Result<()> {
    let start = format!("{DURATION}_count{{{},", labels(target));
    for (sample, count) in samples.of(&start) {
        let of = sample.replace("_count{", "_bucket{").replace('}', ",le=\"");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (bucket, count) in samples.of(&of) {
            let bound = bucket[of.len()..].trim_end_matches("\"}");
            buckets.push((bound.parse()?, count));
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        ensure!(buckets.len() == 23, "{sample}: {buckets:?}");
        ensure!(buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
        let last = (f64::INFINITY, count);
        ensure!(buckets.last() == Some(&last), "{sample}: {buckets:?}");
    }
    Ok(())
}

/// Checks that the sums agree with the events themselves.
fn ensure_sums(cli: &Cli, samples: &Samples, target: &Target) -> Result<()> {
    cli.ok([
        "snapshot",
        "--pid",
        &target.pid().to_string(),
        "-o",
        "s.xtrace",
    ])?;
    let table = cli.ok(["account", "s.xtrace", "--format", "json", "--top", "0"])?;
    let table = serde_json::from_str(&table)?;
    let sums = by_function(samples, &format!("{DURATION}_sum"), target)?;
    let rows = rows(&table, "rows")?;
    ensure!(rows.len() == sums.len(), "{sums:?}: {table}");
    for row in rows {
        let name = row["name"].as_str().context("no name")?;
        let name = name.split('(').next().context("no name")?;
        let expected = row["sum_ns"].as_f64().context("no sum")? / 1e9;
        let sum = sums.get(name).context("no such function")?;
        // The rate of the counter was measured at another time.
        ensure!(
            (sum - expected).abs() <= expected / 1000.0 + 1e-7,
            "{sum}: {row}"
        );
    }
    Ok(())
}

/// In each mode, for two processes of the same program.
#[test]
fn every_call_of_a_chosen_function_is_in_its_histogram() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&["--metrics", "0", "--metrics-functions", "work::*"])?;
    let address = metrics_of(&daemon)?;
    ensure!(address.ip().is_loopback(), "{address}");
    let cli = scene.with(&daemon)?;
    let mut targets = Vec::new();
    for mode in ["flight", "stream", "profile"] {
        let target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid, "--mode", mode])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        targets.push((target, mode));
    }
    for (target, mode) in &mut targets {
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        let reported = until_all_are_there(address, target, &truth)?;
        ensure_histograms(&reported, target)?;
        if *mode == "stream" {
            ensure_sums(&cli, &reported, target)?;
        }
        let session = labels(target);
        for (name, expected) in [
            ("events_total", truth.events()),
            ("events_lost_total", 0),
            ("functions_on", 20),
            ("functions", 20),
            ("calls_unassigned_total", 0),
        ] {
            reported.says(&format!("xrayd_session_{name}{{{session}}}"), expected)?;
        }
        let state = format!("xrayd_session_state{{{session},xrayd_session_state=");
        reported.says(&format!("{state}\"tracing\"}}"), 1)?;
        reported.says(&format!("{state}\"exited\"}}"), 0)?;
        let label = format!("xrayd_session_mode{{{session},xrayd_session_mode=\"{mode}\"}}");
        reported.says(&label, 1)?;
        let unfinished = by_function(&reported, "xrayd_function_calls_without_exit_total", target)?;
        ensure!(
            unfinished.values().all(|calls| *calls == 0.0),
            "{unfinished:?}"
        );
    }
    let reported = samples(address)?;
    reported.says("xrayd_sessions{state=\"tracing\"}", 3)?;
    reported.says("xrayd_sessions_begun_total", 3)?;
    let cpu = reported
        .get("process_cpu_seconds_total")
        .context("no cpu")?;
    ensure!(cpu > 0.0, "{reported:?}");
    Ok(())
}

/// An ended session keeps its metrics for some time, whatever its end was. The totals keep its
/// numbers for good.
#[test]
fn an_ended_process_keeps_its_last_numbers() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&["--metrics", "127.0.0.1:0", "--metrics-functions", "*"])?;
    let address = metrics_of(&daemon)?;
    let cli = scene.with(&daemon)?;
    let mut events = 0;
    for (round, (killed, state)) in (1..).zip([(true, "exited"), (false, "detached")]) {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        if killed {
            target.kill()?;
        } else {
            cli.ok(["detach", &pid])?;
        }
        let reported = until_all_are_there(address, &target, &truth)?;
        let of_state = format!(
            "xrayd_session_state{{{},xrayd_session_state=\"{state}\"}}",
            labels(&target)
        );
        wait_until(DEADLINE, "the end is told", || {
            Ok((samples(address)?.get(&of_state) == Some(1.0)).then_some(()))
        })?;
        events += truth.events();
        reported.says("xrayd_events_total", events)?;
        reported.says("xrayd_sessions_begun_total", round)?;
    }
    samples(address)?.says("xrayd_events_total", events)
}

/// The functions that are called first get the histograms, and there are no more histograms than
/// the limit.
#[test]
fn the_number_of_histograms_is_limited() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&[
        "--metrics",
        "0",
        "--metrics-functions",
        "work::*",
        "--metrics-max-functions",
        "3",
    ])?;
    let address = metrics_of(&daemon)?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let called = truth.calls().iter().filter(|calls| **calls > 0).count();
    let reported = wait_until(DEADLINE, "all functions that were called are known", || {
        let reported = samples(address)?;
        let left_out = reported
            .get("xrayd_functions_left_out")
            .context("not told")?;
        #[expect(clippy::cast_precision_loss, reason = "20 functions")]
        let all = left_out + 3.0 == called as f64;
        Ok(all.then_some(reported))
    })?;
    reported.says("xrayd_functions_measured", 3)?;
    reported.says("xrayd_functions_measured_max", 3)?;
    let counts = by_function(&reported, &format!("{DURATION}_count"), &target)?;
    ensure!(counts.len() == 3, "{counts:?}");
    Ok(())
}

/// An independent parser reads both formats, with a name that tries to be more than a name.
#[test]
fn a_reader_of_others_reads_both_formats() -> Result<()> {
    const READ: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text
read = {"open": open_metrics, "text": text}[sys.argv[1]]
for group in read(sys.stdin.read()):
    print("group", group.name, group.type, group.unit or "-")
    for sample in group.samples:
        if sample.name.startswith("xrayd_session_events_total"):
            print("events", int(sample.value), repr(sample.labels["process"]))
"#;
    const NAME: &str = "a\"b\\c} 1\n#";
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&["--metrics", "0", "--metrics-functions", "*"])?;
    let address = metrics_of(&daemon)?;
    let cli = scene.with(&daemon)?;
    let program = scene.path(NAME);
    integration::copy_program(&build(Fixture::Counted)?, &program)?;
    let mut command = Command::new(&program);
    command.args(COUNTED);
    let mut target = Target::spawn_command(command)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let expected = truth.events().to_string();
    for (accept, kind, how) in [
        (OPEN_METRICS, OPEN_METRICS, "open"),
        ("*/*", "text/plain; version=0.0.4", "text"),
    ] {
        let body = wait_until(DEADLINE, "all events are told", || {
            let answer = page(address, accept)?;
            let reported = &answer.headers["content-type"];
            ensure!(*reported == format!("{kind}; charset=utf-8"), "{reported}");
            let all = answer.body.lines().any(|line| {
                line.starts_with("xrayd_session_events_total{") && line.ends_with(&expected)
            });
            Ok(all.then_some(answer.body))
        })?;
        let file = scene.path(how);
        fs::write(&file, &body)?;
        let mut reader = Tool::Python3.command()?;
        reader.args(["-c", READ, how]).stdin(fs::File::open(&file)?);
        let output = reader.output()?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{how}: {complaints}: {body}");
        let read = String::from_utf8(output.stdout)?;
        let events = format!("events {expected} 'a\"b\\\\c}} 1\\n#'");
        ensure!(
            read.lines().any(|line| line == events),
            "no {events}: {read}"
        );
        if how == "open" {
            for group in [
                "group xrayd_session_events counter -",
                "group xrayd_session_mode stateset -",
                "group xrayd_build info -",
                "group process_cpu_seconds counter seconds",
                "group xrayd_function_duration_seconds histogram seconds",
            ] {
                ensure!(read.lines().any(|line| line == group), "{group}: {read}");
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_listens_unless_it_is_asked_for() -> Result<()> {
    let scene = Scene::new()?;
    let silent = scene.daemon()?;
    ensure!(listening(silent.pid())? == 0);
    drop(silent);
    let telling = scene.daemon_with(&["--metrics", "0"])?;
    ensure!(listening(telling.pid())? == 1);
    Ok(())
}

/// The number of TCP sockets of a process.
fn listening(pid: u32) -> Result<usize> {
    let mut inodes = HashSet::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        let rows = table.lines().skip(1);
        inodes.extend(rows.filter_map(|row| Some(row.split_whitespace().nth(9)?.to_owned())));
    }
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = match fs::read_link(entry?.path()) {
            Ok(link) => link,
            // A listening socket stays open, other descriptors may be closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let link = link.to_string_lossy();
        let inode = link
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        count += usize::from(inode.is_some_and(|inode| inodes.contains(inode)));
    }
    Ok(count)
}

#[test]
fn an_address_that_cannot_be_had_is_reported_at_the_start() -> Result<()> {
    let scene = Scene::new()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let taken = taken.local_addr()?.to_string();
    for (address, part) in [
        (taken.as_str(), "Address already in use"),
        // An address of a network for documentation.
        ("192.0.2.1:9464", "Cannot assign requested address"),
    ] {
        let error = scene.daemon_with(&["--metrics", address]).err();
        let error = error.context("it has started")?.to_string();
        let whole = format!("cannot serve metrics at {address}: {part}");
        // The error number and a newline follow the message.
        ensure!(
            error.contains(&whole) && error.contains("exit status: 1"),
            "{error}"
        );
        ensure!(!scene.path("xrayd.sock").exists(), "{error}");
    }
    // A second start fails because of the daemon, not because of its port.
    let first = scene.daemon_with(&["--metrics", "0"])?;
    let address = metrics_of(&first)?.to_string();
    let mut second = Command::new(integration::xrayd()?);
    second.arg("--socket").arg(first.socket());
    let output = second.args(["--metrics", &address]).output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(log.contains("another xrayd is running"), "{log}");
    ensure!(!output.status.success());
    Ok(())
}

#[test]
fn an_address_that_others_can_reach_is_warned_of() -> Result<()> {
    let scene = Scene::new()?;
    for (address, warns) in [("0.0.0.0:0", true), ("[::1]:0", false)] {
        let daemon = scene.daemon_with(&["--metrics", address])?;
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains("address="));
        let line = line.context(log.clone())?;
        ensure!(line.contains("WARN") == warns, "{address}: {line}");
    }
    Ok(())
}

#[test]
fn there_is_one_page_and_it_is_for_reading_only() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&["--metrics", "0"])?;
    let address = metrics_of(&daemon)?;
    let headers: String = (0..200).map(|at| format!("X-{at}: 1\r\n")).collect();
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /metrics/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /../metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (
            "GET /metrics?name=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
            200,
        ),
        ("GET /metrics HTTP/1.0\r\n\r\n", 200),
        ("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (
            "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
            405,
        ),
        ("DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("nonsense\r\n\r\n", 400),
        (
            &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"),
            431,
        ),
    ] {
        let shown = &request[..request.len().min(60)];
        let answer = send(address, request).with_context(|| shown.to_owned())?;
        ensure!(answer.status == status, "{shown}: {answer:?}");
    }
    // A request that is too long is not read to its end, so the answer may be lost with the
    // connection.
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let status = send(address, &long).map(|answer| answer.status);
    ensure!(
        status.as_ref().map_or(true, |status| *status == 431),
        "{status:?}"
    );
    ensure!(page(address, "*/*")?.body.contains("xrayd_build_info"));
    Ok(())
}

/// Only the daemon's user and group can connect to a unix socket. It is removed with the daemon.
#[test]
fn a_unix_socket_serves_metrics_too() -> Result<()> {
    let scene = Scene::new()?;
    let path = scene.path("metrics.sock");
    let mut daemon = scene.daemon_with(&["--metrics", &format!("unix:{}", path.display())])?;
    let mut asking = UnixStream::connect(&path)?;
    asking.set_read_timeout(Some(DEADLINE))?;
    // No browser can connect here, so every host name is accepted.
    asking.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = String::new();
    asking.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    ensure!(answer.contains("xrayd_build_info"), "{answer}");
    let mode = fs::metadata(&path)?.permissions().mode();
    ensure!(mode & 0o777 == 0o660, "{mode:o}");
    daemon.signal(Signal::SIGTERM)?;
    ensure!(daemon.wait()?.success(), "{}", daemon.log());
    ensure!(!path.exists());
    Ok(())
}

/// A client that sends nothing or half a request delays no answer, and does not delay the daemon's
/// end.
#[test]
fn slow_clients_are_in_nobodys_way() -> Result<()> {
    const CLIENTS: usize = 200;
    let scene = Scene::new()?;
    let mut daemon = scene.daemon_with(&["--metrics", "0"])?;
    let address = metrics_of(&daemon)?;
    let mut clients = Vec::new();
    for at in 0..CLIENTS {
        let mut client = TcpStream::connect(address)?;
        let answer = [
            "",
            "GET /met",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
        ][at % 3];
        // The daemon may have closed it in favour of another one.
        let _ = client.write_all(answer.as_bytes());
        clients.push(client);
    }
    let answer = page(address, "*/*")?;
    ensure!(answer.body.contains("xrayd_build_info"), "{answer:?}");
    let mut open = || {
        let mut open = 0;
        for client in &mut clients {
            client.set_nonblocking(true)?;
            match client.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => open += 1,
                _ => {}
            }
        }
        Ok::<_, anyhow::Error>(open)
    };
    // The answer did not wait for these clients to leave.
    let were = open()?;
    ensure!(were > 30, "{were} of {CLIENTS} were open");
    wait_until(DEADLINE, "no more are open than there may be", || {
        Ok((open()? <= 64).then_some(()))
    })?;
    daemon.signal(Signal::SIGTERM)?;
    let status = daemon.wait()?;
    ensure!(status.success(), "{status}: {}", daemon.log());
    Ok(())
}

/// Metrics of functions enable no function, and no more events are read than without them.
#[test]
fn choosing_functions_switches_nothing_on() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon_with(&["--metrics", "0", "--metrics-functions", "*"])?;
    let address = metrics_of(&daemon)?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    GroundTruth::parse(&target.ask("go", "result ")?)?;
    let reported = samples(address)?;
    let session = labels(&target);
    reported.says(&format!("xrayd_session_functions_on{{{session}}}"), 0)?;
    reported.says(&format!("xrayd_session_events_total{{{session}}}"), 0)?;
    reported.says("xrayd_functions_measured", 0)
}
