//! The service within the process: the same calls, authorisation and errors as over a socket.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Child, Command},
};

use tonic::{Code, Status, transport::Channel};
use xrayd::{
    Reason,
    process::{Registry, RegistryConfig},
    rpc::{embedded, reason_of},
    target::Caller,
};
use xrayd_proto::v1::{self, xrayd_client::XraydClient};

/// A program without sleds, ended when the test is over.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn me() -> Caller {
    Caller::this_process()
}

async fn client(caller: Caller) -> XraydClient<Channel> {
    let registry = Registry::new(RegistryConfig::default());
    XraydClient::new(embedded(registry, caller).await.unwrap())
}

fn check_refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, reason: Reason) {
    let status = result.unwrap_err();
    assert_eq!(
        (status.code(), reason_of(&status)),
        (code, Some(reason)),
        "{status}"
    );
    assert!(!status.message().is_empty() && !status.message().contains('\n'));
}

#[tokio::test]
async fn processes_are_listed_and_the_daemon_tells_of_itself() {
    let mut client = client(me()).await;
    let info = client
        .get_info(v1::GetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.daemon_pid, std::process::id());
    assert_eq!(info.retain_bytes, RegistryConfig::default().retain_bytes);
    let list = client
        .list_processes(v1::ListProcessesRequest {})
        .await
        .unwrap()
        .into_inner();
    for process in &list.processes {
        assert!(
            process.functions > 0,
            "{process:?} has sleds, else it would not be listed"
        );
    }
    assert!(list.processes.is_sorted_by_key(|process| process.pid));
}

#[tokio::test]
async fn preflight_says_row_by_row_what_is_missing() {
    let sleeper = Sleeper::start();
    let mut client = client(me()).await;
    let request = v1::PreflightRequest { pid: sleeper.pid() };
    let answer = client.preflight(request).await.unwrap().into_inner();
    assert_eq!(answer.pid, sleeper.pid());
    assert!(!answer.ready);
    let failed: Vec<_> = answer
        .checks
        .iter()
        .filter(|check| check.result() == v1::CheckResult::Failed)
        .map(|check| check.id.as_str())
        .collect();
    assert_eq!(failed, ["no-sleds"]);
}

#[tokio::test]
async fn a_program_without_sleds_is_not_attached_to() {
    let sleeper = Sleeper::start();
    let mut client = client(me()).await;
    let request = v1::AttachRequest {
        pid: sleeper.pid(),
        ..v1::AttachRequest::default()
    };
    check_refused(
        client.attach(request).await,
        Code::FailedPrecondition,
        Reason::NoSleds,
    );
    let status = client
        .get_status(v1::StatusRequest { pid: 0 })
        .await
        .unwrap()
        .into_inner();
    assert!(status.processes.is_empty());
}

#[tokio::test]
async fn another_users_process_can_neither_be_seen_nor_touched() {
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let stranger = Caller::in_process(me().uid ^ 0x4000_0000, 1);
    let mut client = client(stranger).await;
    let denied =
        |status| check_refused::<()>(Err(status), Code::PermissionDenied, Reason::Permission);

    denied(
        client
            .preflight(v1::PreflightRequest { pid })
            .await
            .unwrap_err(),
    );
    let attach = v1::AttachRequest {
        pid,
        ..v1::AttachRequest::default()
    };
    denied(client.attach(attach).await.unwrap_err());
    denied(
        client
            .detach(v1::DetachRequest {
                pid,
                ..Default::default()
            })
            .await
            .unwrap_err(),
    );
    denied(
        client
            .get_status(v1::StatusRequest { pid })
            .await
            .unwrap_err(),
    );
    let all = || v1::Rule {
        rule: Some(v1::rule::Rule::All(true)),
    };
    let selection = Some(v1::Selection {
        include: vec![all()],
        exclude: vec![],
    });
    let toggle = v1::ToggleRequest {
        pid,
        selection,
        dry_run: false,
        capture: None,
        lease: 0,
    };
    denied(client.enable(toggle.clone()).await.unwrap_err());
    denied(client.disable(toggle).await.unwrap_err());
    let functions = v1::ListFunctionsRequest {
        pid,
        selection: None,
    };
    denied(client.list_functions(functions).await.unwrap_err());
    let events = v1::StreamEventsRequest {
        pid,
        selection: None,
        undo: None,
    };
    denied(client.stream_events(events).await.unwrap_err());
    denied(
        client
            .stream_trace(v1::StreamTraceRequest {
                run_times: true,
                pid,
                ..v1::StreamTraceRequest::default()
            })
            .await
            .unwrap_err(),
    );
    denied(
        client
            .fetch_trace(v1::FetchTraceRequest { pid, last_ns: 0 })
            .await
            .unwrap_err(),
    );

    let list = client
        .list_processes(v1::ListProcessesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(
        list.processes
            .iter()
            .all(|process| process.uid == stranger.uid)
    );
}

#[tokio::test]
async fn a_process_that_its_user_may_not_look_into_is_roots() {
    // The kernel makes a process undumpable whose program its user cannot read; and so do agents
    // that keep secrets.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o111)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.arg("60");
    let user = if me().uid == 0 { 65_534 } else { me().uid };
    if me().uid == 0 {
        command.uid(user);
    }
    let sleeper = Sleeper(command.spawn().unwrap());
    let mut client = client(Caller::in_process(user, 1)).await;
    let preflight = client
        .preflight(v1::PreflightRequest { pid: sleeper.pid() })
        .await;
    check_refused(preflight, Code::PermissionDenied, Reason::Permission);
}

#[tokio::test]
async fn a_process_that_is_not_attached_or_not_there_is_reported() {
    let sleeper = Sleeper::start();
    let mut client = client(me()).await;
    let status = client
        .get_status(v1::StatusRequest { pid: sleeper.pid() })
        .await;
    check_refused(status, Code::NotFound, Reason::NotAttached);
    let fetch = client
        .fetch_trace(v1::FetchTraceRequest {
            pid: sleeper.pid(),
            last_ns: 0,
        })
        .await;
    check_refused(fetch, Code::NotFound, Reason::NotAttached);
    for pid in [0, u32::MAX, 0x3fff_fff0] {
        let preflight = client.preflight(v1::PreflightRequest { pid }).await;
        check_refused(preflight, Code::NotFound, Reason::NoSuchProcess);
    }
}

#[tokio::test]
async fn a_bad_selection_is_refused_before_anything_is_looked_at() {
    let mut client = client(me()).await;
    let regex = v1::Rule {
        rule: Some(v1::rule::Rule::Regex("(".to_owned())),
    };
    let bad = v1::Selection {
        include: vec![regex],
        exclude: vec![],
    };
    for selection in [None, Some(v1::Selection::default()), Some(bad)] {
        let toggle = v1::ToggleRequest {
            pid: 0,
            selection,
            dry_run: true,
            capture: None,
            lease: 0,
        };
        check_refused(
            client.enable(toggle).await,
            Code::InvalidArgument,
            Reason::Selection,
        );
    }
}

#[tokio::test]
async fn more_arguments_than_registers_are_refused_and_so_are_values_of_what_is_switched_off() {
    let mut client = client(me()).await;
    let toggle = |arguments| v1::ToggleRequest {
        pid: 0,
        selection: Some(v1::Selection {
            include: vec![v1::Rule {
                rule: Some(v1::rule::Rule::All(true)),
            }],
            exclude: vec![],
        }),
        dry_run: false,
        capture: Some(v1::Capture {
            arguments,
            result: true,
        }),
        lease: 0,
    };
    for arguments in [7, u32::MAX] {
        check_refused(
            client.enable(toggle(arguments)).await,
            Code::InvalidArgument,
            Reason::Limit,
        );
    }
    check_refused(
        client.disable(toggle(1)).await,
        Code::InvalidArgument,
        Reason::Limit,
    );
    client.enable(toggle(6)).await.unwrap();
}

#[tokio::test]
async fn a_call_that_failed_gives_its_place_back() {
    let sleeper = Sleeper::start();
    let mut client = client(me()).await;
    // Far more than one user may have under way at a time.
    for _ in 0..200 {
        let request = v1::FetchTraceRequest {
            pid: sleeper.pid(),
            last_ns: 0,
        };
        let fetch = client.fetch_trace(request).await;
        check_refused(fetch, Code::NotFound, Reason::NotAttached);
    }
}
