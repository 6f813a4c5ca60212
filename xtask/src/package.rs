//! What the Debian package and the tarball have in common: release builds of the programs, and the
//! files that the programs write themselves.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;

use crate::shell::{cargo, execute};

/// The programs of both, each in the package of its name.
pub(crate) const PROGRAMS: [&str; 3] = ["xrayd", "xrayctl", "xray-relay"];

/// A program that this needs, and what installs it.
pub(crate) struct Needed {
    /// The command, with an argument that has no effect.
    pub(crate) command: [&'static str; 2],
    /// The command line that installs it.
    pub(crate) install: &'static str,
}

/// The completions of each shell, by the names under which the shells look for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "xrayctl"),
    ("zsh", "_xrayctl"),
    ("fish", "xrayctl.fish"),
];

/// Fails if a program is missing, with the commands that install all that are.
pub(crate) fn check_tools(needed: &[Needed]) -> Result<()> {
    let is_missing = |needed: &&Needed| !is_there(needed.command);
    let missing: Vec<_> = needed.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|tool| tool.command.join(" ")).collect();
    let installs: Vec<_> = missing.iter().map(|tool| tool.install).collect();
    bail!(
        "these commands fail: {}; install their programs with\n\n    {}\n",
        names.join(", "),
        installs.join("\n    ")
    );
}

/// Whether a command can be started, and succeeds.
pub(crate) fn is_there(command: [&str; 2]) -> bool {
    let output = Command::new(command[0]).arg(command[1]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Builds the programs for release, with more arguments of cargo.
pub(crate) fn build_programs(arguments: &[&str]) -> Result<()> {
    let mut build = cargo("build");
    build.args(["--release", "--bins"]).args(arguments);
    for program in PROGRAMS {
        build.args(["--package", program]);
    }
    execute(&mut build)
}

/// Writes the manual pages, compressed, to `man` in this folder, and the completions to
/// `completions`.
pub(crate) fn write_generated(xrayctl: &Path, folder: &Path) -> Result<()> {
    remake(folder)?;
    let man = folder.join("man");
    execute(Command::new(xrayctl).arg("man").arg(&man))?;
    execute(Command::new("gzip").args(["-9n", "--recursive"]).arg(man))?;
    let completions = folder.join("completions");
    fs::create_dir(&completions)?;
    for (shell, name) in COMPLETIONS {
        let file = File::create(completions.join(name))?;
        let mut write = Command::new(xrayctl);
        execute(write.args(["completions", shell]).stdout(file))?;
    }
    Ok(())
}

/// Makes an empty folder.
pub(crate) fn remake(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// A fact about the last commit, in git's format. Packages of one commit are the same then.
pub(crate) fn last_commit(format: &str) -> Result<String> {
    let output = Command::new("git")
        .current_dir(workspace_dir())
        .args(["log", "-1", &format!("--format={format}")])
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git log: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The folder of release builds.
pub(crate) fn release_dir() -> Result<PathBuf> {
    Ok(integration::target_dir()?.join("release"))
}
