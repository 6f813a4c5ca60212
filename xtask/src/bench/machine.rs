//! The machine on which the figures were taken. Nothing here is measured.

use std::fmt;
use std::fs;
use std::process::Command;

use nix::sys::utsname::uname;

/// Facts, one a line.
#[derive(Clone, Debug)]
pub(crate) struct Machine(Vec<(&'static str, String)>);

// === impl Machine ===

impl Machine {
    /// This machine, now.
    pub(crate) fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, model)| model);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = uname().map_or_else(
            |error| error.to_string(),
            |name| format!("{} {}", name.sysname().display(), name.release().display()),
        );
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map_or_else(|| "unknown".to_owned(), |kib| format!("{} MiB", kib >> 10));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("unknown").to_owned();
        Self(vec![
            ("processor", format!("{model}, {cores} threads")),
            ("memory", memory),
            ("kernel", kernel),
            ("system", system()),
            ("rustc", printed("rustc", &["--version"])),
            ("clang", printed("clang-19", &["--version"])),
            ("uftrace", printed("uftrace", &["--version"])),
            ("date", printed("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
            ("load at the start", load),
        ])
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fact, value) in &self.0 {
            writeln!(f, "* {fact}: {value}")?;
        }
        Ok(())
    }
}

fn system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or_else(
            || "unknown".to_owned(),
            |name| name.trim_matches('"').to_owned(),
        )
}

/// The first line of a program's output.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    match text.as_deref().map(|text| text.lines().next()) {
        Ok(Some(line)) => line.trim().to_owned(),
        Ok(None) | Err(_) => "not installed".to_owned(),
    }
}
