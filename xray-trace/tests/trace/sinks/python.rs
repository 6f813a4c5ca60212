//! Readers that only PyPI has, in an environment of their own under `target/`.
//!
//! Where it cannot be made, because there is no network, the test says so on standard error and passes; where `CI` is set,
//! it fails.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const PACKAGES: [&str; 2] = ["perfetto==0.59.1", "duckdb==2.0.0"];

/// Runs a script with these arguments and gives the last line it prints; `None` if there is no environment.
pub(super) fn python(script: &str, arguments: &[&Path]) -> Option<String> {
    static ENVIRONMENT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let python = match ENVIRONMENT.get_or_init(environment) {
        Ok(python) => python,
        Err(error) => {
            let why = format!("packages of PyPI cannot be installed: {error}");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            say_not_tested(&why);
            return None;
        }
    };
    let mut command = Command::new(python);
    command.arg("-c").arg(script).args(arguments);
    // Perfetto's package tells what it fetches, also on standard output.
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().last().unwrap_or_default().to_owned())
}

/// Says aloud what was not tested; a test's own output is only seen when it fails.
pub(super) fn say_not_tested(why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "\nNOT TESTED: {why}").unwrap();
}

/// Makes the environment, or finds it. A half-made one is never found, since it gets its name last.
fn environment() -> Result<PathBuf, String> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("python-{}", PACKAGES.join("-").replace("==", "-"));
    let done = parent.join(&name).join("done");
    // A virtual environment cannot be moved; a mark says that it is whole.
    let python = parent.join(name).join("bin/python");
    if done.exists() {
        return Ok(python);
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
    let folder = done.parent().unwrap();
    step(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(folder),
    )?;
    step(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(PACKAGES),
    )?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(python)
}
