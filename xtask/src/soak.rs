//! `cargo xtask soak`: the long versions of those tests that prove little in a short run. Sleds are
//! switched tens of millions of times under load, attach and detach run in a loop, threads come and
//! go by the hundred thousand, libraries by the ten thousand. Real programs work for minutes while
//! tracing comes and goes. Daemons are killed a thousand times, relays and their disks fail again
//! and again, and a systemd boots with the units. The short versions are in `cargo xtask test`.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use integration::workspace_dir;

use crate::shell::{cargo, cargo_program, execute, say};
use crate::test::{OnMissing, install_container, install_missing, systemd_test};

/// The environment variable for that. With 1, long tests run at full length.
const SWITCH: &str = "XRAYD_SOAK";

/// The environment variable with the seconds for which each real program is traced.
const SECONDS: &str = "XRAYD_SOAK_SECONDS";

/// The test programs of `integration`, and their parts that have a long version.
const LONG: &[(&str, &[&str])] = &[
    (
        "engine",
        &[
            "storm::",
            "threads::",
            "truth::",
            "registers::",
            "killed::",
            "libraries::",
            "coexistence::",
            "refusals::",
            "arguments::",
            "events::",
            "signals::",
            "rseq::",
        ],
    ),
    ("programs", &["real::", "daemon_kills::", "relay::"]),
];

/// The time limit of a round.
const LIMIT: &str = "2h";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Begin another round until so many minutes have passed; one round at least
    #[arg(long, value_name = "N", default_value_t = 0)]
    minutes: u64,
    /// Trace each real program for so many minutes in each round; 0: one turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    program_minutes: u64,
    /// Run the tests whose names have one of these in them [default: all that have a long version]
    tests: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    install_missing(OnMissing::Install)?;
    install_container(OnMissing::Install)?;
    // The tests start the programs of their own profile.
    execute(cargo("build").args(["--release", "--package", "xrayd", "--package", "xrayctl"]))?;
    let begun = Instant::now();
    let wanted = Duration::from_secs(arguments.minutes.saturating_mul(60));
    for round in 1.. {
        for (program, parts) in LONG {
            run_part(arguments, program, parts)?;
        }
        if arguments.tests.is_empty() {
            execute(&mut systemd_test("release"))?;
        }
        say(&format!(
            "round {round} passed, {} s in all",
            begun.elapsed().as_secs()
        ))?;
        if begun.elapsed() >= wanted {
            break;
        }
    }
    Ok(())
}

fn run_part(arguments: &Arguments, program: &str, parts: &[&str]) -> Result<()> {
    let mut test = Command::new("timeout");
    test.args(["--kill-after=10", LIMIT])
        .arg(cargo_program())
        .current_dir(workspace_dir())
        .args([
            "test",
            "--locked",
            "--release",
            "--package",
            "integration",
            "--test",
            program,
        ])
        .arg("--");
    match arguments.tests.as_slice() {
        [] => test.args(parts),
        tests => test.args(tests),
    };
    if program == "programs" {
        // Each takes the whole machine, and a short run leaves some out.
        test.args(["--test-threads=1", "--include-ignored"]);
    }
    let seconds = arguments.program_minutes.saturating_mul(60);
    test.env(SWITCH, "1").env(SECONDS, seconds.to_string());
    execute(&mut test)
}
