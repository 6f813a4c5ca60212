//! Redis from Debian's source package, every function with sleds: without a runtime, and with LLVM's.
//!
//! Everything stays below `target/bench/redis`; the machine's own package lists are not touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use integration::Tool;

use crate::shell::say;

/// Where the machine says what packages it has.
const LISTS: &str = "/etc/apt";

/// LLVM's flight recorder cannot be switched on by the environment alone.
const FLIGHT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <xray/xray_interface.h>
#include <xray/xray_log_interface.h>

static void end() {
    __xray_unpatch();
    __xray_log_finalize();
    __xray_log_flushLog();
}

__attribute__((constructor)) static void begin() {
    if (!getenv("BENCH_FLIGHT")) return;
    if (__xray_log_select_mode("xray-fdr") != XRAY_REGISTRATION_OK ||
        __xray_log_init_mode("xray-fdr", "func_duration_threshold_us=0") != XRAY_LOG_INITIALIZED ||
        __xray_patch() != SUCCESS) {
        fputs("cannot record by xray-fdr\n", stderr);
        exit(1);
    }
    atexit(end);
}
"#;

/// In the compiler's name, so that they reach every bundled library too.
const SLEDS: &str = "-fxray-instrument -fxray-instruction-threshold=1";

/// Both builds.
#[derive(Debug)]
pub(super) struct Redis {
    /// Sleds, and nothing that would switch them.
    pub(super) plain: PathBuf,
    /// The same with LLVM's runtime.
    pub(super) llvm: PathBuf,
    pub(super) benchmark: PathBuf,
    pub(super) version: String,
}

impl Redis {
    /// Gets and builds what is not there yet.
    pub(super) fn get(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let source = source(dir)?;
        let plain = build(
            dir,
            &source,
            "plain",
            &format!("{SLEDS} -fno-xray-link-deps"),
            "",
        )?;
        let llvm_dir = dir.join("llvm");
        let flight = dir.join("flight.o");
        if !llvm_dir.join("redis-server").is_file() {
            let code = dir.join("flight.cpp");
            fs::write(&code, FLIGHT).with_context(|| format!("cannot write {}", code.display()))?;
            // Without sleds of its own.
            Tool::ClangXx19.run([
                Path::new("-c"),
                Path::new("-O2"),
                &code,
                Path::new("-o"),
                &flight,
            ])?;
        }
        let llvm = build(dir, &source, "llvm", SLEDS, &flight.to_string_lossy())?;
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            plain: plain.join("redis-server"),
            llvm: llvm.join("redis-server"),
            benchmark: plain.join("redis-benchmark"),
            version: name.replace('-', " "),
        })
    }
}

/// The unpacked source package.
fn source(dir: &Path) -> Result<PathBuf> {
    let unpacked = || -> Result<Option<PathBuf>> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("redis-") && path.join("src/server.c").is_file() {
                return Ok(Some(path.clone()));
            }
        }
        Ok(None)
    };
    if let Some(path) = unpacked()? {
        return Ok(path);
    }
    for needed in ["apt-get", "dpkg-source", "make"] {
        let found = Command::new(needed).arg("--version").output();
        ensure!(
            found.is_ok_and(|output| output.status.success()),
            "{needed} is not installed: apt-get install dpkg-dev make"
        );
    }
    say("getting the source of Redis")?;
    let apt = dir.join("apt");
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
    for words in [&["update"][..], &["source", "redis"]] {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=10", "300", "apt-get", "-q"])
            .current_dir(dir);
        for option in &options {
            command.args(["-o", option]);
        }
        quietly(command.args(words), &dir.join("apt.log"))?;
    }
    unpacked()?.context("the source package has no src/server.c")
}

/// Writes lists that name the sources of what the machine's own lists name as binaries.
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

/// A list in either of apt's two forms, with sources in the place of binaries.
fn of_sources(list: &str) -> String {
    let line = |line: &str| match (line.strip_prefix("deb "), line.strip_prefix("Types:")) {
        (Some(rest), _) => format!("deb-src {rest}\n"),
        (None, Some(_)) => "Types: deb-src\n".to_owned(),
        (None, None) => format!("{line}\n"),
    };
    list.lines().map(line).collect()
}

/// Builds a copy of `source` in `dir/name-build` and keeps its programs in `dir/name`.
fn build(dir: &Path, source: &Path, name: &str, flags: &str, objects: &str) -> Result<PathBuf> {
    let finished = dir.join(name);
    if finished.join("redis-server").is_file() {
        return Ok(finished);
    }
    say(&format!("building Redis ({name})"))?;
    let work = dir.join(format!("{name}-build"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    quietly(
        Command::new("cp").arg("-r").arg(source).arg(&work),
        &dir.join("cp.log"),
    )?;
    let compiler = Tool::Clang19.path()?;
    let mut make = Command::new("timeout");
    make.args(["--kill-after=10", "1200", "make", "-j2", "-C"])
        .arg(work.join("src"))
        .arg(format!("CC={} {flags}", compiler.display()))
        .args(["MALLOC=libc", "BUILD_TLS=no", "USE_SYSTEMD=no"])
        .arg(format!("REDIS_LDFLAGS={objects}"))
        .args(["redis-server", "redis-benchmark"]);
    quietly(&mut make, &dir.join(format!("{name}.log")))?;
    let partial = dir.join(format!("{name}-partial"));
    fs::create_dir_all(&partial).context("cannot create a directory")?;
    for program in ["redis-server", "redis-benchmark"] {
        fs::copy(work.join("src").join(program), partial.join(program))
            .with_context(|| format!("no {program} was built"))?;
    }
    // In one step, so that what is there is whole.
    fs::rename(&partial, &finished).context("cannot rename a directory")?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    Ok(finished)
}

/// Runs `command`; what it says goes to `log`, of which an error has the end.
fn quietly(command: &mut Command, log: &Path) -> Result<()> {
    let file = fs::File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let other = file.try_clone().context("cannot share a file")?;
    let shown = crate::shell::shown(command);
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(file)
        .stderr(other)
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        let text = fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        bail!("{shown}: {status}: {last} (see {})", log.display());
    }
    Ok(())
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
