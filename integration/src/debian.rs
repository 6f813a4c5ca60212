//! Debian's source packages, unpacked with Debian's patches. The machine's own package lists stay
//! as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cache::once;
use crate::tool::{Tool, output_of};

/// The machine's lists of package sources.
const LISTS: &str = "/etc/apt";

/// The time limit of every command that uses the network, in seconds.
const LIMIT: &str = "300";

/// The unpacked source package of this name, fetched once.
///
/// # Errors
/// The network has no such package, or a tool is missing.
pub(crate) fn source(package: &str) -> Result<PathBuf> {
    let kept = once(&format!("source-{package}"), 0, |work| get(package, work))?;
    unpacked(&kept, package)
}

/// The directory `<package>-<version>` in `dir`.
fn unpacked(dir: &Path, package: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&format!("{package}-")) && path.is_dir() {
            return Ok(path);
        }
    }
    anyhow::bail!("no source of {package} in {}", dir.display())
}

fn get(package: &str, work: &Path) -> Result<()> {
    // apt-get calls it.
    Tool::DpkgSource.path()?;
    let apt = work.join("apt");
    for sub in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(sub)).context("cannot create a directory")?;
    }
    let parts = apt.join("sources.list.d");
    list_sources(&apt, &parts)?;
    let options = [
        format!(
            "Dir::Etc::sourcelist={}",
            apt.join("sources.list").display()
        ),
        format!("Dir::Etc::sourceparts={}", parts.display()),
        format!("Dir::State::lists={}", apt.join("lists").display()),
        format!("Dir::Cache={}", apt.join("cache").display()),
        "APT::Sandbox::User=".to_owned(),
    ];
    let run = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", LIMIT]).current_dir(work);
        command.arg(words[0]);
        for option in &options {
            command.args(["-o", option]);
        }
        output_of(command.args(&words[1..]))
    };
    run(&["apt-get", "-q", "update"])?;
    let mut got = run(&["apt-get", "-q", "source", package]);
    if got.is_err() {
        // A list may name a version that is no longer, or not yet, in its place. An earlier version
        // will do.
        let rows = run(&["apt-cache", "showsrc", package])?;
        let versions = rows.lines().filter_map(|row| row.strip_prefix("Version: "));
        for version in versions {
            got = got.or_else(|first| {
                run(&["apt-get", "-q", "source", &format!("{package}={version}")]).or(Err(first))
            });
        }
    }
    got?;
    fs::remove_dir_all(&apt).context("cannot remove a directory")?;
    unpacked(work, package).map(drop)
}

/// Writes lists of the sources of those packages that the machine's own lists have as binaries.
fn list_sources(apt: &Path, parts: &Path) -> Result<()> {
    fs::create_dir_all(parts).context("cannot create a directory")?;
    let machine = Path::new(LISTS);
    // Either of the two may be missing.
    let main = fs::read_to_string(machine.join("sources.list")).unwrap_or_default();
    fs::write(apt.join("sources.list"), of_sources(&main)).context("cannot write a list")?;
    let Ok(entries) = fs::read_dir(machine.join("sources.list.d")) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry.context("cannot read the machine's lists")?.path();
        let known = path
            .extension()
            .is_some_and(|kind| kind == "list" || kind == "sources");
        if let (true, Some(name)) = (known, path.file_name()) {
            let list = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            fs::write(parts.join(name), of_sources(&list)).context("cannot write a list")?;
        }
    }
    Ok(())
}

/// A list in either of apt's two forms, with sources in place of binaries.
fn of_sources(list: &str) -> String {
    let line = |line: &str| match (line.strip_prefix("deb "), line.strip_prefix("Types:")) {
        (Some(rest), _) => format!("deb-src {rest}\n"),
        (None, Some(_)) => "Types: deb-src\n".to_owned(),
        (None, None) => format!("{line}\n"),
    };
    list.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_forms_name_sources() {
        assert_eq!(
            of_sources("deb [a=b] http://one.example x main\n# deb two\n"),
            "deb-src [a=b] http://one.example x main\n# deb two\n"
        );
        assert_eq!(
            of_sources("Types: deb\nURIs: u\n"),
            "Types: deb-src\nURIs: u\n"
        );
    }
}
