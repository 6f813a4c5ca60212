//! `cargo xtask tarball`: the programs, linked statically against musl, for systems without a
//! package.
//!
//! The folder in the tarball has `bin`, `share`, `lib` and `etc` as a prefix such as `/usr/local`
//! has them. The programs need no library, and no place of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build, target_dir, workspace_dir};

use crate::package::{PROGRAMS, build_programs, last_commit, remake, write_generated};
use crate::shell::{execute, say, shown};
use crate::test::install_target;

/// The target of the static programs.
const TARGET: &str = "x86_64-unknown-linux-musl";

/// The trace of the test.
const TRACE: &str = "/trace.xtrace";
/// The pause between two rounds of the test's program.
const PAUSE: Duration = Duration::from_millis(10);

/// Files of the source tree, and the folder in the tarball of each.
const FILES: [(&str, &str); 12] = [
    ("README.md", "."),
    ("CHANGELOG.md", "."),
    ("LICENSE-APACHE", "."),
    ("LICENSE-MIT", "."),
    ("packaging/xrayd.toml", "etc/xrayd"),
    ("packaging/policies.d/README", "etc/xrayd/policies.d"),
    ("systemd/xrayd.service", "lib/systemd/system"),
    ("systemd/xrayd.socket", "lib/systemd/system"),
    ("systemd/xrayd-metrics.socket", "lib/systemd/system"),
    ("systemd/tmpfiles.d/xrayd.conf", "lib/tmpfiles.d"),
    ("systemd/group.conf", "share/doc/xrayd"),
    ("systemd/confined.conf", "share/doc/xrayd"),
];

/// Folders of generated files, the files in each by their ends, and their folder in the tarball.
const GENERATED: [(&str, &str, &str); 6] = [
    ("man", ".1.gz", "share/man/man1"),
    ("man", ".5.gz", "share/man/man5"),
    ("man", ".8.gz", "share/man/man8"),
    (
        "completions",
        "/xrayctl",
        "share/bash-completion/completions",
    ),
    ("completions", "/_xrayctl", "share/zsh/site-functions"),
    ("completions", ".fish", "share/fish/vendor_completions.d"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Record a program in a root that has nothing but the tarball and that program; needs root
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.test {
        let is_root = nix::unistd::geteuid().is_root();
        ensure!(
            is_root,
            "the test of the tarball needs root: it changes its root folder"
        );
    }
    install_target(TARGET)?;
    build_programs(&["--target", TARGET])?;
    let built = target_dir()?.join(TARGET).join("release");
    let name = format!("xrayd-{}-x86_64-linux-musl", env!("CARGO_PKG_VERSION"));
    let folder = built.join(&name);
    fill(&folder, &built)?;
    let tarball = built.join(format!("{name}.tar.gz"));
    pack(&folder, &tarball)?;
    if arguments.test {
        test(&tarball, &name)?;
    }
    say(&format!("the tarball is {}", tarball.display()))
}

/// Copies everything to the folder that becomes the tarball.
fn fill(folder: &Path, built: &Path) -> Result<()> {
    remake(folder)?;
    for program in PROGRAMS {
        let copied = copy(&built.join(program), &folder.join("bin"))?;
        execute(Command::new("strip").arg(&copied))?;
        ensure_static(&copied)?;
    }
    for (file, to) in FILES {
        copy(&workspace_dir().join(file), &folder.join(to))?;
    }
    let generated = built.join("package");
    write_generated(&folder.join("bin/xrayctl"), &generated)?;
    for (from, end, to) in GENERATED {
        for entry in fs::read_dir(generated.join(from))? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(end) {
                copy(&path, &folder.join(to))?;
            }
        }
    }
    Ok(())
}

/// Copies a file into a folder, which is made if it is not there.
fn copy(file: &Path, folder: &Path) -> Result<PathBuf> {
    let name = file.file_name().context("a file has no name")?;
    let to = folder.join(name);
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(file, &to))
        .with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    Ok(to)
}

/// Fails if a program needs a loader.
fn ensure_static(program: &Path) -> Result<()> {
    let headers = Command::new("readelf")
        .args(["--program-headers", "--wide"])
        .arg(program)
        .output()
        .context("cannot run readelf")?;
    let headers = String::from_utf8_lossy(&headers.stdout).into_owned();
    let is_static = headers.contains("LOAD") && !headers.contains("INTERP");
    ensure!(is_static, "{} is not static: {headers}", program.display());
    Ok(())
}

/// Packs a folder. Tarballs of one commit are the same.
fn pack(folder: &Path, tarball: &Path) -> Result<()> {
    let name = folder.file_name().context("a folder has no name")?;
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ])
    .args(["--mode=go-w,a+rX", "--format=gnu"])
    .arg(format!("--mtime=@{}", last_commit("%ct")?))
    .args(["--use-compress-program", "gzip -9n", "--file"])
    .arg(tarball)
    .arg("--directory")
    .arg(folder.parent().context("a folder has no parent")?)
    .arg(name);
    execute(&mut tar)
}

/// Records a static program in a root with nothing but the tarball and that program.
fn test(tarball: &Path, name: &str) -> Result<()> {
    let root = tempfile::tempdir()?;
    let root = root.path();
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--file").arg(tarball);
    execute(unpack.arg("--directory").arg(root))?;
    fs::copy(build(Fixture::Static)?, root.join("program"))?;
    for folder in ["proc", "dev"] {
        fs::create_dir(root.join(folder))?;
    }
    let mut program = Command::new("chroot");
    program.arg(root).arg("/program");
    let mut program = Target::spawn_command(program)?;
    let pid = program.pid().to_string();
    let xrayctl = format!("/{name}/bin/xrayctl");

    let mut record = confined(
        root,
        &[&xrayctl, "record", &pid, "--duration", "2s", "-o", TRACE],
    );
    say(&format!("$ {}", shown(&record)))?;
    let mut record = record.spawn().context("cannot start unshare")?;
    let recorded = loop {
        program.ask("go", "done ")?;
        if let Some(status) = record.try_wait()? {
            break status;
        }
        sleep(PAUSE);
    };
    ensure!(
        recorded.success(),
        "the program was not recorded: {recorded}"
    );
    program.still_running()?;
    let mut report = confined(root, &[&xrayctl, "report", TRACE, "--limit", "60"]);
    let report = report.output().context("cannot start unshare")?;
    let text = String::from_utf8_lossy(&report.stdout);
    say(&text)?;
    let is_whole = ["logged", "logged_tail", "plain"]
        .iter()
        .all(|name| text.contains(name));
    ensure!(is_whole, "the report has not all functions of the program");
    execute(&mut confined(root, &[&xrayctl, "ps"]))
}

/// A command in this root, with the kernel's `/proc` and `/dev`, and without an environment.
fn confined(root: &Path, command: &[&str]) -> Command {
    const SCRIPT: &str = "mount -t proc proc \"$0/proc\" && mount --bind /dev \"$0/dev\" \
                          && exec env -i $(command -v chroot) \"$0\" \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", SCRIPT]).arg(root);
    unshare.args(command);
    unshare
}
