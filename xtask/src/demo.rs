//! `cargo xtask demo`: traces a real program once, from the attach to the report. It needs Rust and
//! nothing else: no clang, no root.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use integration::{DEADLINE, Fixture, Target, build, target_dir, xrayctl};
use tokio::signal::unix::{SignalKind, signal};

use crate::shell::{cargo, execute, say, status};

/// The exit code of xrayctl when the process may not be traced; see `docs/xrayctl.md`.
const REFUSED: i32 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long to record
    #[arg(long, default_value = "2s")]
    duration: String,
    /// How many lines of the call tree to show
    #[arg(long, default_value_t = 40)]
    limit: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    execute(cargo("build").args(["--package", "xrayd", "--package", "xrayctl"]))?;
    let xrayctl = xrayctl()?;

    let mut program = Command::new(build(Fixture::Demo)?);
    // Ctrl-C on the terminal is for the recording, not for the recorded program.
    program.process_group(0);
    let mut market = Target::spawn_command(program)?;
    let pid = market.pid().to_string();
    // A name of its own: another demo may run at the same time.
    let trace = target_dir()?.join(format!("demo-{pid}.xtrace"));
    let program = market.program().display().to_string();
    say(&format!(
        "\n{program} runs as process {pid}: {}",
        beat(&mut market)?
    ))?;

    say("\nAttach while it runs, switch the functions of its own crate on, record, detach:")?;
    let mut record = Command::new(&xrayctl);
    record
        .args(["record", &pid, "--regex", "^<?demo::", "--force"])
        .args(["--duration", &arguments.duration, "-o"])
        .arg(&trace);
    survive_interrupts()?;
    let recorded = status(&mut record)?;
    if recorded.code() == Some(REFUSED) {
        // Now, because the program ends with this one.
        say("\nWhat stands in the way:")?;
        status(Command::new(&xrayctl).args(["doctor", &pid]))?;
    }
    if !recorded.success() {
        bail!("the program could not be recorded: {recorded}");
    }

    say("\nWhat it did:")?;
    let limit = arguments.limit.to_string();
    execute(
        Command::new(&xrayctl)
            .arg("report")
            .arg(&trace)
            .args(["--limit", &limit]),
    )?;

    market.still_running()?;
    say(&format!(
        "\nProcess {pid} still runs, untouched: {}",
        beat(&mut market)?
    ))?;
    say(&format!(
        "The trace is {}. To look at it again:",
        trace.display()
    ))?;
    let (program, file) = (xrayctl.display(), trace.display());
    say(&format!("    {program} report {file}"))?;
    say(&format!(
        "    {program} convert {file} -o demo.json    # for chrome://tracing or ui.perfetto.dev"
    ))
}

/// Makes this program survive Ctrl-C from here on. Ctrl-C ends the program in the foreground, the
/// recording for example. This program has the result to show then.
fn survive_interrupts() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot prepare for Ctrl-C")?;
    let _entered = runtime.enter();
    // The handler stays when its receiver goes. Unlike an ignored signal, children do not inherit
    // it.
    let _handled = signal(SignalKind::interrupt()).context("cannot prepare for Ctrl-C")?;
    Ok(())
}

/// The program's newest sign of life.
fn beat(market: &mut Target) -> Result<String> {
    market.skip_lines();
    market.line_with("beat ", DEADLINE)
}
