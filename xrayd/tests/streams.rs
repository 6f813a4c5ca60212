//! Live and retained traces of a real program, through the service.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tonic::{Streaming, transport::Channel};
use xray_trace::{container::Completeness, model::Trace};
use xrayd::{
    embedded,
    process::{Registry, RegistryConfig},
    target::Caller,
};
use xrayd_proto::v1::{self, xrayd_client::XraydClient};

const DEADLINE: Duration = Duration::from_secs(30);

/// Two threads that call `work`, which calls `leaf` ten times.
const SOURCE: &str = r#"
use std::{hint::black_box, thread, time::Duration};
#[inline(never)] #[unsafe(no_mangle)] extern "C" fn leaf(x: u64) -> u64 { black_box(x * 3) }
#[inline(never)] #[unsafe(no_mangle)] extern "C" fn work() -> u64 { (0..10).map(|x| leaf(x)).sum() }
fn main() {
    let threads = [0, 1].map(|_| thread::spawn(|| loop { black_box(work()); thread::sleep(Duration::from_micros(100)); }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
"#;

/// The program, running; ended when the test is over.
struct Target {
    child: Child,
    _dir: TempDir,
}

impl Target {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("target.rs"), dir.path().join("target"));
        fs::write(&source, SOURCE).unwrap();
        let built = Command::new("rustc")
            .args(["-O", "-Z", "instrument-xray=always", "--edition=2024", "-o"])
            .args([&program, &source])
            .env("RUSTC_BOOTSTRAP", "1")
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let child = Command::new(program).stdin(Stdio::null()).spawn().unwrap();
        let target = Self { child, _dir: dir };
        let threads = || {
            fs::read_dir(format!("/proc/{}/task", target.pid()))
                .unwrap()
                .count()
        };
        let deadline = Instant::now() + DEADLINE;
        while threads() < 3 {
            assert!(
                Instant::now() < deadline,
                "the program did not start its threads"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        target
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn attached(target: &Target) -> XraydClient<Channel> {
    let registry = Registry::new(RegistryConfig::default());
    let channel = embedded(registry, Caller::this_process()).await.unwrap();
    let mut client = XraydClient::new(channel);
    let request = v1::AttachRequest {
        pid: target.pid(),
        ..v1::AttachRequest::default()
    };
    let status = client
        .attach(request)
        .await
        .unwrap()
        .into_inner()
        .status
        .unwrap();
    assert_eq!(status.state(), v1::SessionState::Tracing);
    client
}

fn selection(names: &[&str]) -> Option<v1::Selection> {
    let rule = |name: &&str| v1::Rule {
        rule: Some(v1::rule::Rule::Function((*name).to_owned())),
    };
    Some(v1::Selection {
        include: names.iter().map(rule).collect(),
        exclude: Vec::new(),
    })
}

fn toggle(target: &Target, names: &[&str]) -> v1::ToggleRequest {
    v1::ToggleRequest {
        pid: target.pid(),
        selection: selection(names),
        dry_run: false,
        capture: None,
        lease: 0,
    }
}

async fn events_at_least(client: &mut XraydClient<Channel>, target: &Target, events: u64) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let request = v1::StatusRequest { pid: target.pid() };
        let status = client.get_status(request).await.unwrap().into_inner();
        if status.processes[0].events >= events {
            return;
        }
        assert!(Instant::now() < deadline, "too few events: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn bytes_of(mut stream: Streaming<v1::TraceChunk>) -> (Vec<u8>, v1::TraceChunk) {
    let (mut bytes, mut last) = (Vec::new(), v1::TraceChunk::default());
    while let Some(mut chunk) = stream.message().await.unwrap() {
        bytes.append(&mut chunk.data);
        last = chunk;
    }
    (bytes, last)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_trace_has_everything_from_its_headers_to_the_detach() {
    let target = Target::start();
    let pid = target.pid();
    let mut client = attached(&target).await;
    let stream = client
        .stream_trace(v1::StreamTraceRequest {
            pid,
            ..v1::StreamTraceRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    let live = tokio::spawn(bytes_of(stream));
    let on = client
        .enable(toggle(&target, &["work", "leaf"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(on.reports[0].matched, 2);
    events_at_least(&mut client, &target, 5_000).await;
    client
        .disable(toggle(&target, &["work", "leaf"]))
        .await
        .unwrap();
    let report = client
        .detach(v1::DetachRequest {
            pid,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner()
        .reports
        .remove(0);
    assert_eq!(
        (report.sleds_on, report.text_bytes_different, report.refusal),
        (0, 0, None)
    );

    let (bytes, last) = live.await.unwrap();
    let trace = Trace::read(bytes.as_slice()).unwrap();
    assert_eq!(trace.coverage().completeness, Completeness::Complete);
    assert_eq!(trace.processes()[0].pid, pid);
    let mut names: Vec<_> = trace.functions().iter().map(|f| f.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["leaf", "work"]);
    assert_eq!(last.reader_lost, 0);
    assert_eq!(
        (trace.totals().calls, last.events),
        (report.events, report.events)
    );
    assert!(
        trace.clock().frequency().is_some(),
        "a live trace has a measured clock"
    );
    for thread in trace.blocks_by_thread().into_keys() {
        assert!(trace.thread(thread).is_some(), "{thread:?} is described");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_events_equal_the_count() {
    let target = Target::start();
    let pid = target.pid();
    let mut client = attached(&target).await;
    client.enable(toggle(&target, &["work"])).await.unwrap();
    events_at_least(&mut client, &target, 500).await;
    client.disable(toggle(&target, &["work"])).await.unwrap();
    let fetch = client
        .fetch_trace(v1::FetchTraceRequest { pid, last_ns: 0 })
        .await
        .unwrap()
        .into_inner();
    let (bytes, _) = bytes_of(fetch).await;
    let trace = Trace::read(bytes.as_slice()).unwrap();
    assert_eq!(trace.coverage().completeness, Completeness::Complete);
    assert_eq!(trace.functions().len(), 1);
    let report = client
        .detach(v1::DetachRequest {
            pid,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner()
        .reports
        .remove(0);
    assert_eq!(trace.totals().calls, report.events);
}

#[tokio::test(flavor = "multi_thread")]
async fn live_events_are_named_timed_and_selected() {
    let target = Target::start();
    let pid = target.pid();
    let mut client = attached(&target).await;
    let request = v1::StreamEventsRequest {
        pid,
        selection: selection(&["work"]),
        undo: None,
    };
    let mut stream = client.stream_events(request).await.unwrap().into_inner();
    let now = || {
        u64::try_from(
            Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap())
                .as_nanos(),
        )
        .unwrap()
    };
    let before = now();
    client
        .enable(toggle(&target, &["work", "leaf"]))
        .await
        .unwrap();
    let (mut events, mut functions, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    while events.len() < 200 {
        let batch = tokio::time::timeout(DEADLINE, stream.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(batch.events.len() <= 4096);
        events.extend(batch.events);
        functions.extend(batch.functions);
        threads.extend(batch.threads);
    }
    let after = now();
    assert_eq!(functions.len(), 1);
    assert_eq!(functions[0].name, "work");
    // A clock that has just begun to be measured is a little off.
    let slack = 50_000_000;
    for event in &events {
        assert_eq!(event.function, functions[0].id);
        assert!(
            (before - slack..after + slack).contains(&event.monotonic_ns),
            "{event:?} {before}..{after}"
        );
        assert!(
            threads.iter().any(|thread| thread.tid == event.tid),
            "{event:?} {threads:?}"
        );
    }
    // The stream ends with the session, by itself.
    client.detach(v1::DetachRequest::default()).await.unwrap();
    let ended = async { while stream.message().await.unwrap().is_some() {} };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_are_listed_alike_with_and_without_an_attach() {
    let target = Target::start();
    let pid = target.pid();
    let registry = Registry::new(RegistryConfig::default());
    let mut client = XraydClient::new(embedded(registry, Caller::this_process()).await.unwrap());
    let request = || v1::ListFunctionsRequest {
        pid,
        selection: selection(&["work", "leaf"]),
    };
    let mut listings = Vec::new();
    for attach in [false, true] {
        if attach {
            let request = v1::AttachRequest {
                pid,
                ..v1::AttachRequest::default()
            };
            client.attach(request).await.unwrap();
        }
        let mut stream = client.list_functions(request()).await.unwrap().into_inner();
        let mut functions = Vec::new();
        while let Some(batch) = stream.message().await.unwrap() {
            functions.extend(batch.functions);
        }
        listings.push(functions);
    }
    assert_eq!(listings[0].len(), 2);
    assert_eq!(listings[0], listings[1]);
    client
        .detach(v1::DetachRequest {
            pid,
            ..Default::default()
        })
        .await
        .unwrap();
}

/// Who has asked for sums and is killed when it has them cannot let go of the process any more: the
/// daemon does.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_let_go_though_whoever_has_its_sums_does_nothing_more() {
    let target = Target::start();
    let mut client = attached(&target).await;
    let request = v1::FetchProfileRequest {
        pid: target.pid(),
        from_now: true,
        undo: Some(v1::Undo {
            what: Some(v1::undo::What::Detach(true)),
        }),
    };
    // Nothing more is said, so the answer comes.
    let answer = client.fetch_profile(tokio_stream::iter([request])).await;
    let (bytes, _) = bytes_of(answer.unwrap().into_inner()).await;
    assert!(!bytes.is_empty());
    let deadline = Instant::now() + DEADLINE;
    loop {
        let status = client.get_status(v1::StatusRequest { pid: 0 }).await;
        let status = status.unwrap().into_inner();
        if status.processes.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "still attached: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
