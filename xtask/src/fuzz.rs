//! `cargo xtask fuzz`: feeds the readers of foreign data with inputs from libFuzzer. The tests run
//! each target for a number of inputs that takes seconds. The targets themselves are in `fuzz/`.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use integration::workspace_dir;

use crate::shell::{cargo, execute};

/// Each target, and the inputs of a short run. They take a second or two, and the seeds come first.
const TARGETS: &[(&str, u32)] = &[
    ("ring", 20_000),
    ("collect", 300),
    ("adoption", 50),
    ("sleds", 5_000),
    ("instr_map", 10_000),
    ("demangler", 20_000),
    ("target_files", 5_000),
    ("target_memory", 20_000),
    ("requests", 10_000),
    ("records", 20_000),
    ("metrics", 5_000),
    ("view", 5_000),
    ("conditions", 5_000),
    ("llvm_logs", 10_000),
    ("xtrace", 10_000),
    ("traces", 1_500),
    ("ctf", 3_000),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long to run in all, in minutes: each target gets the same share
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The targets [default: all]
    targets: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let targets: Vec<&str> = match arguments.targets.as_slice() {
        [] => TARGETS.iter().map(|(target, _)| *target).collect(),
        targets => targets.iter().map(String::as_str).collect(),
    };
    // libFuzzer takes 0 for no limit.
    let share = arguments.minutes.saturating_mul(60) / targets.len() as u64;
    let length = format!("-max_total_time={}", share.max(1));
    targets
        .into_iter()
        .try_for_each(|target| fuzz(target, &length))
}

/// Makes a short run of every target.
pub(crate) fn run_short() -> Result<()> {
    TARGETS
        .iter()
        .try_for_each(|(target, inputs)| fuzz(target, &format!("-runs={inputs}")))
}

fn fuzz(target: &str, length: &str) -> Result<()> {
    let folder = workspace_dir().join("fuzz");
    for kind in ["corpus", "artifacts"] {
        let path = folder.join(kind).join(target);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    }
    let mut command = cargo("run");
    command
        .current_dir(&folder)
        // These flags would replace the ones that instrument the targets.
        .env_remove("RUSTFLAGS")
        .args(["--quiet", "--release", "--bin", target, "--"])
        .arg(format!("corpus/{target}"));
    let seeds = format!("seeds/{target}");
    if folder.join(&seeds).is_dir() {
        command.arg(seeds);
    }
    command
        .arg(format!("-artifact_prefix=artifacts/{target}/"))
        .args([length, "-timeout=10", "-rss_limit_mb=256", "-max_len=16384"])
        .args(["-verbosity=0"]);
    with_compiler(&mut command);
    execute(&mut command)
}

/// Chooses a compiler: libFuzzer is C++. Where there is no g++, the clang that the tests need
/// compiles it.
fn with_compiler(command: &mut Command) {
    if !Path::new("/usr/bin/g++").exists() && std::env::var_os("CXX").is_none() {
        command.env("CXX", "clang++-19");
    }
}
