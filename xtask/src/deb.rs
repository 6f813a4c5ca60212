//! `cargo xtask deb`: the Debian package `xrayd`, and its test in a clean Debian.
//!
//! `[package.metadata.deb]` in `xrayd/Cargo.toml` lists its files. The scripts that dpkg runs are
//! in `packaging/debian/`. The test boots a systemd in a root made by debootstrap, and runs
//! `integration/systemd/package.sh` there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use integration::{Container, Fixture, build, debian_root, workspace_dir};

use crate::package::{
    Needed, build_programs, check_tools, is_there, last_commit, release_dir, write_generated,
};
use crate::shell::{cargo, execute, say};

/// The version of the package: that of the programs, and the revision of the package itself.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");
/// As `xrayd/Cargo.toml` has it.
const MAINTAINER: &str = "xrayd developers <developers@xrayd.invalid>";

const TO_BUILD: [Needed; 2] = [
    Needed {
        command: ["cargo-deb", "--version"],
        install: "cargo install cargo-deb --locked",
    },
    Needed {
        command: ["dpkg-shlibdeps", "--version"],
        install: "apt-get install dpkg-dev",
    },
];

const TO_TEST: [Needed; 2] = [
    Needed {
        command: ["debootstrap", "--version"],
        install: "apt-get install debootstrap",
    },
    Needed {
        command: ["systemd-nspawn", "--version"],
        install: "apt-get install systemd-container",
    },
];

/// The checks of Debian's packages.
const LINTIAN: [&str; 2] = ["lintian", "--version"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The version of the package
    #[arg(long, default_value = VERSION)]
    deb_version: String,
    /// Install, upgrade, remove and purge the package in a booted systemd of a clean Debian 12;
    /// needs root
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    check_tools(&TO_BUILD)?;
    if arguments.test {
        let is_root = nix::unistd::geteuid().is_root();
        ensure!(
            is_root,
            "the test of the package needs root: it boots a container"
        );
        check_tools(&TO_TEST)?;
    }
    build_programs(&[])?;
    let release = release_dir()?;
    write_generated(&release.join("xrayctl"), &release.join("package"))?;
    let version = &arguments.deb_version;
    // First, because cargo-deb removes the packages that are in `target/debian`.
    let later = match arguments.test {
        true => Some(make(&format!("{version}+later"), &release.join("package"))?),
        false => None,
    };
    let package = make(version, &integration::target_dir()?.join("debian"))?;
    check(&package)?;
    if let Some(later) = later {
        test(&package, &later)?;
    }
    say(&format!("the package is {}", package.display()))
}

/// Makes the package of the programs that are built, in this folder.
fn make(version: &str, folder: &Path) -> Result<PathBuf> {
    let changelog = format!(
        "xrayd ({version}) unstable; urgency=medium\n\n  * The changes are in changelog.gz.\n\n \
         -- {MAINTAINER}  {}\n",
        last_commit("%cD")?
    );
    let file = release_dir()?.join("package/changelog.Debian");
    fs::write(&file, changelog)?;
    execute(Command::new("gzip").args(["-9nf"]).arg(&file))?;
    let package = folder.join(format!("xrayd_{version}_amd64.deb"));
    let mut deb = cargo("deb");
    deb.args([
        "--package",
        "xrayd",
        "--no-build",
        "--strip",
        "--deb-version",
        version,
    ])
    .arg("--output")
    .arg(&package)
    .env("SOURCE_DATE_EPOCH", last_commit("%ct")?);
    execute(&mut deb)?;
    Ok(package)
}

/// Checks the package by Debian's rules, where their checker is installed.
fn check(package: &Path) -> Result<()> {
    if !is_there(LINTIAN) {
        return say("the package was not checked: lintian is not installed");
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--profile", "debian", "--allow-root", "--fail-on", "error"]);
    execute(lintian.arg(package))
}

/// Tries the package, and an upgrade to a later one.
fn test(package: &Path, later: &Path) -> Result<()> {
    say("making a clean Debian 12, once")?;
    let container = Container::over(&debian_root()?)?;
    container.copy(package, "xrayd-test/first.deb")?;
    container.copy(later, "xrayd-test/second.deb")?;
    container.copy(&build(Fixture::Counted)?, "xrayd-test/program")?;
    container.copy(&build(Fixture::Service)?, "xrayd-test/service")?;
    let guide = workspace_dir().join("docs/operating.md");
    container.copy(&guide, "xrayd-test/operating.md")?;
    let passed = container.run(&workspace_dir().join("integration/systemd/package.sh"))?;
    say(&format!("the package passed {passed} checks"))
}
