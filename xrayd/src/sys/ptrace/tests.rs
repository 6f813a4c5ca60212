//! Tests of stops.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command},
};

use nix::sys::signal::{Signal, kill};

use super::*;

const ROUNDS: u32 = 10_000;

/// A program that sleeps until a signal kills it.
struct Sleeper(Child);

impl Sleeper {
    fn tid(&self) -> Tid {
        self.0.id().try_into().unwrap()
    }

    /// A line of its status.
    fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.tid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The program ignores the signal, which stops a traced thread all the same. The time between
/// the signal and the requested stop differs from round to round. The kernel forgets no stop
/// here, since no timer sends the signal: the engine's tests of signals cover that.
#[test]
fn a_thread_stops_and_goes_on_whenever_a_signal_comes() {
    let mut sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let tid = sleeper.tid();
    for round in 0..ROUNDS {
        let thread = Seized::seize(tid).unwrap();
        kill(tid.as_nix(), Signal::SIGWINCH).unwrap();
        for _ in 0..round % 1000 {
            std::hint::spin_loop();
        }
        let stopped = thread.interrupt(Duration::from_secs(10)).unwrap();
        match round % 2 {
            0 => drop(stopped.release().unwrap()),
            _ => drop(stopped),
        }
        let (state, tracer) = (sleeper.status("State:"), sleeper.status("TracerPid:"));
        let goes_on = tracer == "0" && !state.starts_with(['t', 'T']);
        assert!(goes_on, "round {round}: {state}, tracer {tracer}");
    }
    // The program blocks no signal.
    kill(tid.as_nix(), Signal::SIGTERM).unwrap();
    let ended = sleeper.0.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGTERM));
}
