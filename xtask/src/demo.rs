//! `cargo xtask demo`: the whole way once, with a real program. Needs Rust and nothing else; no clang, no root.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use integration::{DEADLINE, Fixture, Target, target_dir, xrayctl};

use crate::shell::{cargo, execute, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long to record
    #[arg(long, default_value = "2s")]
    duration: String,
    /// How many lines of the call tree to show
    #[arg(long, default_value_t = 40)]
    limit: u32,
    /// Where the trace goes [default: target/demo.xtrace]
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    execute(cargo().args(["build", "--package", "xrayd", "--package", "xrayctl"]))?;
    let xrayctl = xrayctl()?;
    let trace = match &arguments.output {
        Some(path) => path.clone(),
        None => target_dir()?.join("demo.xtrace"),
    };

    let mut market = Target::spawn(Fixture::Demo, [""; 0])?;
    let pid = market.pid().to_string();
    let program = market.program().display().to_string();
    say(&format!(
        "\n{program} runs as process {pid}: {}",
        beat(&mut market)?
    ))?;

    say("\nAttach while it runs, switch the functions of its own crate on, record, detach:")?;
    execute(
        Command::new(&xrayctl)
            .args([
                "record",
                &pid,
                "--regex",
                "^<?demo::",
                "--duration",
                &arguments.duration,
                "-o",
            ])
            .arg(&trace),
    )
    .with_context(|| format!("what stands in the way: {} doctor {pid}", xrayctl.display()))?;

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

/// The program's newest sign of life.
fn beat(market: &mut Target) -> Result<String> {
    market.skip_lines();
    market.line_with("beat ", DEADLINE)
}
