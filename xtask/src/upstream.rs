//! `cargo xtask upstream`: LLVM's own tests of `llvm-xray`, with xrayctl in its place. The tests
//! come from a checkout of LLVM that the user names; this repository has none of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use integration::workspace_dir;
use serde_json::Value;

use crate::shell::{cargo, execute, say};

/// The directory of LLVM 19 as Debian's packages install it.
const LLVM: &str = "/usr/lib/llvm-19";

/// Where the tests are in a checkout of LLVM's monorepo, and in one of LLVM alone.
const PLACES: &[&str] = &["llvm/test/tools/llvm-xray", "test/tools/llvm-xray"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The checkout: of llvm-project, or of its directory llvm
    path: PathBuf,
}

/// The result of each test, by its name.
type Results = BTreeMap<String, String>;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let suite = suite(&arguments.path)?;
    let lit = Path::new(LLVM).join("build/utils/lit/lit.py");
    for (what, package) in [
        (lit.clone(), "llvm-19-tools"),
        (Path::new(LLVM).join("bin/FileCheck"), "llvm-19-tools"),
        (Path::new(LLVM).join("bin/llvm-xray"), "llvm-19"),
    ] {
        let what = what.display();
        ensure!(
            fs::exists(what.to_string())?,
            "{what} is missing: apt-get install {package} python3"
        );
    }
    execute(cargo("build").args(["--package", "xrayctl"]))?;
    let ours = workspace_dir().join("target/debug/xrayctl");
    let theirs = Path::new(LLVM).join("bin/llvm-xray");
    let [ours, theirs] = [ours, theirs].map(|program| results(&suite, &lit, &program));
    let (ours, theirs) = (ours?, theirs?);
    let passed = |results: &Results| results.values().filter(|code| *code == "PASS").count();
    say(&format!(
        "{} of {} tests pass with xrayctl, {} with llvm-xray-19",
        passed(&ours),
        ours.len(),
        passed(&theirs)
    ))?;
    let differ = theirs
        .iter()
        .filter(|(name, code)| ours.get(*name) != Some(code));
    let mut worse = Vec::new();
    for (name, code) in differ {
        let other = ours.get(name).map_or("missing", String::as_str);
        say(&format!(
            "  {name}: {code} with llvm-xray-19, {other} with xrayctl"
        ))?;
        if code == "PASS" {
            worse.push(name.as_str());
        }
    }
    ensure!(
        worse.is_empty(),
        "these tests pass with llvm-xray-19 only: {}",
        worse.join(", ")
    );
    Ok(())
}

/// The directory of the tests in a checkout.
fn suite(checkout: &Path) -> Result<PathBuf> {
    let found = PLACES.iter().map(|place| checkout.join(place));
    let Some(suite) = found.into_iter().find(|suite| suite.is_dir()) else {
        bail!(
            "{} has no directory {}: name a checkout of llvm-project",
            checkout.display(),
            PLACES.join(" and no ")
        );
    };
    suite
        .canonicalize()
        .with_context(|| format!("cannot find {}", suite.display()))
}

/// Runs the tests with this program as `llvm-xray`.
fn results(suite: &Path, lit: &Path, program: &Path) -> Result<Results> {
    let dir = tempfile::tempdir()?;
    let bin = dir.path().join("bin");
    fs::create_dir(&bin)?;
    std::os::unix::fs::symlink(program, bin.join("llvm-xray"))?;
    let report = dir.path().join("report.json");
    fs::write(dir.path().join("lit.cfg"), config(suite, dir.path()))?;
    // Lit fails if a test does. The report has the results.
    let ran = Command::new("python3")
        .arg(lit)
        .args(["--quiet", "--output"])
        .arg(&report)
        .arg(dir.path())
        .output();
    let ran = ran.context("cannot run python3: apt-get install python3")?;
    let report = fs::read(&report).with_context(|| {
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        format!("lit has written no report: {err}")
    })?;
    let report: Value = serde_json::from_slice(&report).context("lit's report is no JSON")?;
    let tests = report["tests"]
        .as_array()
        .context("lit's report has no tests")?;
    let results = tests.iter().filter_map(|test| {
        let name = test["name"].as_str()?;
        let code = test["code"].as_str()?;
        Some((name.to_owned(), code.to_owned()))
    });
    let results = results.collect::<Results>();
    ensure!(
        !results.is_empty(),
        "lit has found no test in {}",
        suite.display()
    );
    Ok(results)
}

/// The configuration of lit.
fn config(suite: &Path, dir: &Path) -> String {
    let (suite, dir) = (suite.display(), dir.display());
    format!(
        "import lit.formats\n\
         config.name = 'llvm-xray'\n\
         config.test_format = lit.formats.ShTest(True)\n\
         config.suffixes = ['.txt', '.yaml', '.ll', '.test']\n\
         config.excludes = ['Inputs']\n\
         config.targets = frozenset(['X86'])\n\
         config.available_features = ['x86-registered-target']\n\
         config.environment['PATH'] = '{dir}/bin:{LLVM}/bin:/usr/bin:/bin'\n\
         config.test_source_root = '{suite}'\n\
         config.test_exec_root = '{dir}/out'\n"
    )
}
