//! The daemon as a process: its socket, its signals, its health, its takeover of a stale socket.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use xrayd_proto::v1::{GetInfoRequest, xrayd_client::XraydClient};

const DEADLINE: Duration = Duration::from_secs(20);

struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(socket: &Path) -> Self {
        let daemon = Self::spawn(socket);
        wait_until("the daemon listens", || UnixStream::connect(socket).is_ok());
        daemon
    }

    fn spawn(socket: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_xrayd"))
            .arg("--socket")
            .arg(socket)
            .args(["--retain", "1MiB", "--log", "text"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            socket: socket.to_owned(),
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the daemon did not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut log = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        (status, log)
    }

    async fn channel(&self) -> Channel {
        let socket = self.socket.clone();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move {
                tokio::net::UnixStream::connect(socket)
                    .await
                    .map(TokioIo::new)
            }
        });
        Endpoint::from_static("http://daemon")
            .connect_with_connector(connect)
            .await
            .unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// Several threads, so that the client's connection answers while the test waits.
#[tokio::test(flavor = "multi_thread")]
async fn it_serves_until_a_signal_and_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let daemon = Daemon::start(&dir.path().join("x.sock"));
        let mut client = XraydClient::new(daemon.channel().await);
        let info = client
            .get_info(GetInfoRequest {})
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            (info.daemon_pid, info.retain_bytes),
            (daemon.child.id(), 1 << 20)
        );
        let socket = daemon.socket.clone();
        daemon.signal(signal);
        let (status, log) = daemon.wait();
        assert!(status.success(), "{status}: {log}");
        assert!(!socket.exists());
    }
}

// One thread, which waits: the connection does not answer, so that the signals come while the
// daemon waits for it.
#[tokio::test]
async fn neither_a_second_signal_nor_a_client_that_stands_still_stops_the_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("x.sock"));
    let _client = daemon.channel().await;
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGINT);
    daemon.signal(Signal::SIGTERM);
    let (status, log) = daemon.wait();
    assert!(status.success(), "{status}: {log}");
}

#[tokio::test]
async fn it_says_that_it_is_healthy_and_what_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("x.sock"));
    let mut health = HealthClient::new(daemon.channel().await);
    for service in ["", "xrayd.v1.Xrayd"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
}

#[tokio::test]
async fn a_socket_that_a_killed_daemon_left_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("x.sock");
    let killed = Daemon::start(&socket);
    killed.signal(Signal::SIGKILL);
    killed.wait();
    assert!(socket.exists());
    let daemon = Daemon::start(&socket);
    let mut client = XraydClient::new(daemon.channel().await);
    client.get_info(GetInfoRequest {}).await.unwrap();
}

#[test]
fn a_second_daemon_does_not_start_and_the_first_stays() {
    let dir = tempfile::tempdir().unwrap();
    let first = Daemon::start(&dir.path().join("x.sock"));
    let (status, log) = Daemon::spawn(&first.socket).wait();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("another xrayd is running"), "{log}");
    UnixStream::connect(&first.socket).unwrap();
}

#[test]
fn the_options_decide_which_users_can_connect() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("x.sock"));
    let expected = if nix::unistd::geteuid().is_root() {
        0o666
    } else {
        0o600
    };
    let mode = daemon.socket.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, expected);
}

#[tokio::test]
async fn the_service_manager_may_pass_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("activated.sock");
    let notify = dir.path().join("notify.sock");
    let notified = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    notified.set_read_timeout(Some(DEADLINE)).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    // Descriptor 3 and LISTEN_PID, as the protocol wants them: only the shell can say its own pid
    // before exec.
    let child = Command::new("sh")
        .arg("-c")
        .arg("exec env LISTEN_PID=$$ LISTEN_FDS=1 \"$0\" 3<&0 </dev/null")
        .arg(env!("CARGO_BIN_EXE_xrayd"))
        .env("NOTIFY_SOCKET", &notify)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let daemon = Daemon {
        child,
        socket: socket.clone(),
    };
    let mut message = [0; 256];
    let length = notified
        .recv(&mut message)
        .expect("the daemon says when it is ready");
    let message = String::from_utf8_lossy(&message[..length]).into_owned();
    assert!(message.contains("READY=1"), "{message}");

    let mut client = XraydClient::new(daemon.channel().await);
    client.get_info(GetInfoRequest {}).await.unwrap();
    daemon.signal(Signal::SIGTERM);
    let (status, log) = daemon.wait();
    assert!(status.success(), "{status}: {log}");
    // The service manager's, not ours to remove.
    assert!(socket.exists());
}

/// A unix socket is for clients, a TCP socket for metrics, in whichever order they come.
#[test]
fn the_service_manager_may_pass_a_socket_for_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("activated.sock");
    for order in ["3<&0 4<&1", "4<&0 3<&1"] {
        let clients = UnixListener::bind(&socket).unwrap();
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = metrics.local_addr().unwrap();
        let daemon = Daemon {
            child: passed(order, clients, metrics),
            socket: socket.clone(),
        };
        let mut asking = TcpStream::connect(address).unwrap();
        asking.set_read_timeout(Some(DEADLINE)).unwrap();
        asking.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        assert!(
            answer.contains("\nxrayd_sessions_begun_total 0\n"),
            "{answer}"
        );
        UnixStream::connect(&socket).unwrap();
        daemon.signal(Signal::SIGTERM);
        let (status, log) = daemon.wait();
        assert!(status.success(), "{status}: {log}");
        assert!(
            log.contains(&format!("serving metrics address={address}")),
            "{log}"
        );
        std::fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn two_sockets_for_the_same_purpose_are_refused() {
    let sockets = ["127.0.0.1:0"; 2].map(|address| TcpListener::bind(address).unwrap());
    let [one, other] = sockets;
    let daemon = Daemon {
        child: passed("3<&0 4<&1", one, other),
        socket: PathBuf::new(),
    };
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("the service manager passed two sockets of one kind"),
        "{log}"
    );
}

/// A daemon that is given two sockets; `order` says, as the shell does, which of them is the first
/// descriptor.
fn passed(order: &str, one: impl Into<OwnedFd>, other: impl Into<OwnedFd>) -> Child {
    let command =
        format!("exec env LISTEN_PID=$$ LISTEN_FDS=2 \"$0\" --log text {order} </dev/null >&2");
    Command::new("sh")
        .arg("-c")
        .arg(command)
        .arg(env!("CARGO_BIN_EXE_xrayd"))
        .stdin(Stdio::from(one.into()))
        .stdout(Stdio::from(other.into()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
