//! `cargo xtask test`: one command from a fresh machine to the result of all tests. The long
//! versions are in `cargo xtask soak`.

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, bail};
use integration::{missing_packages, workspace_dir};

use crate::{
    failed_tests, fuzz,
    shell::{cargo, execute, say},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Install nothing; fail when something is missing
    #[arg(long)]
    no_install: bool,
    /// Keep ten busy threads beside the tests, so that threads wait for processors
    #[arg(long)]
    under_load: bool,
    /// Run the unit tests, the tests of formats, and one program from launch to report; install
    /// nothing
    #[arg(long, conflicts_with_all = ["under_load", "rest"])]
    quick: bool,
    /// Boot a systemd in a container with the units as shipped, and run nothing else; needs root
    #[arg(long, conflicts_with_all = ["under_load", "quick", "rest"])]
    systemd: bool,
    /// Passed on to `cargo test`, for example `-p xrayd -- attach`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

const INSTALL: &[&str] = &["apt-get", "install", "-y", "--no-install-recommends"];

/// The quick tests that trace a program: the test program, and the test in it.
const QUICK: &[(&str, &str)] = &[
    (
        "engine",
        "launching::the_first_event_of_a_launched_program_is_its_main",
    ),
    (
        "programs",
        "cli_record::ends::a_recording_ends_when_its_time_is_up",
    ),
];

/// Busy threads beside tests under load.
const LOAD: usize = 10;

/// Tests at once for each processor: most of them wait more than they compute.
const TESTS_AT_ONCE: usize = 2;
/// The variable with the number of tests at once.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The phases of a run, and how long each took, in whole seconds.
#[derive(Debug, Default)]
struct Phases(Vec<(&'static str, u64)>);

/// The treatment of missing packages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OnMissing {
    Install,
    Fail,
}

/// The user that may install packages here.
enum Installer {
    Root,
    Sudo,
    Nobody,
}

pub(crate) fn run_tests(environment: &[(&str, &str)], rest: &[String]) -> Result<()> {
    build()?;
    test(environment, rest)
}

/// Builds everything: the end-to-end tests start the programs of this build.
fn build() -> Result<()> {
    execute(cargo("build").args(["--workspace", "--all-targets"]))
}

fn test(environment: &[(&str, &str)], rest: &[String]) -> Result<()> {
    let mut test = cargo("test");
    test.arg("--no-fail-fast");
    // Beside `--workspace`, cargo overlooks `-p`.
    if !names_packages(rest) {
        test.arg("--workspace");
    }
    test.args(rest);
    if std::env::var_os(TEST_THREADS).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        test.env(TEST_THREADS, (TESTS_AT_ONCE * processors).to_string());
    }
    test.envs(environment.iter().copied());
    failed_tests::execute(&mut test)
}

fn names_packages(rest: &[String]) -> bool {
    rest.iter()
        .take_while(|word| *word != "--")
        .any(|word| word.starts_with("-p") || word.starts_with("--package"))
}

/// The tests that need nothing but Rust. They select no package, so that they use what the other
/// commands have built.
fn test_quickly(phases: &mut Phases) -> Result<()> {
    phases.time("build", build)?;
    phases.time("unit tests and formats", || {
        let units = ["--lib", "--bins", "--test", "trace"];
        execute(
            cargo("test")
                .args(["--workspace", "--no-fail-fast"])
                .args(units),
        )
    })?;
    phases.time("one program", || {
        for (program, test) in QUICK {
            let only = ["--test", program, "--", "--exact", test];
            execute(cargo("test").arg("--workspace").args(only))?;
        }
        Ok(())
    })?;
    say(
        "the quick tests passed. Not run: the other end-to-end tests, the comparisons with LLVM's \
         tools, doctests, interleavings, AArch64, fuzz targets. `cargo xtask test` runs them all",
    )
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut phases = Phases::default();
    let tested = match (arguments.systemd, arguments.quick) {
        (true, _) => test_systemd(on_missing(arguments), &mut phases),
        (false, true) => test_quickly(&mut phases),
        (false, false) => test_all(arguments, &mut phases),
    };
    phases.show()?;
    tested
}

fn on_missing(arguments: &Arguments) -> OnMissing {
    match arguments.no_install {
        true => OnMissing::Fail,
        false => OnMissing::Install,
    }
}

/// The units as shipped, in a real systemd.
fn test_systemd(on_missing: OnMissing, phases: &mut Phases) -> Result<()> {
    phases.time("packages", || {
        install_missing(on_missing)?;
        install_container(on_missing)
    })?;
    phases.time("build", build)?;
    phases.time("systemd", || execute(&mut systemd_test("dev")))
}

/// Installs what boots systemd, unless it is there.
pub(crate) fn install_container(on_missing: OnMissing) -> Result<()> {
    let boots = Command::new("systemd-nspawn").arg("--version").output();
    match boots.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => install(&["dbus", "systemd-container"], on_missing),
    }
}

/// The test that boots systemd, with the programs of this profile.
pub(crate) fn systemd_test(profile: &str) -> Command {
    let mut test = cargo("test");
    test.args(["--package", "integration", "--test", "systemd"])
        .args(["--profile", profile, "--", "--ignored", "--nocapture"]);
    test
}

fn test_all(arguments: &Arguments, phases: &mut Phases) -> Result<()> {
    phases.time("packages", || install_missing(on_missing(arguments)))?;
    phases.time("build", build)?;
    if arguments.under_load {
        // They end with this process.
        for _ in 0..LOAD {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
    }
    phases.time("tests", || test(&[], &arguments.rest))?;
    // A request for named tests is for these alone.
    if arguments.rest.is_empty() {
        phases.time("AArch64", check_aarch64)?;
        phases.time("interleavings", check_interleavings)?;
        phases.time("fuzz targets", fuzz::run_short)?;
    }
    say("all tests passed")
}

/// Checks that the crates of use on AArch64 compile there. The engine does not: it handles only the
/// registers of x86-64.
fn check_aarch64() -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    install_target(TARGET)?;
    let mut check = cargo("check");
    check.args(["--target", TARGET]);
    for name in [
        "sled-encoders",
        "shm-ring",
        "cxx-demangle",
        "xray-trace",
        "xrayd-proto",
    ] {
        check.args(["-p", name]);
    }
    execute(&mut check)
}

/// Installs the standard library of another processor, where the toolchain has none yet.
pub(crate) fn install_target(target: &str) -> Result<()> {
    let sysroot = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()?;
    let folder = String::from_utf8(sysroot.stdout)?;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    let mut install = Command::new("rustup");
    install.args(["target", "add", target]);
    execute(&mut install).with_context(|| {
        format!("no standard library for {target}: it comes with `rustup target add {target}`")
    })
}

/// Runs the ring under loom, which replaces the atomics and so needs a build of its own.
fn check_interleavings() -> Result<()> {
    let target = workspace_dir().join("target").join("loom");
    let mut loom = cargo("test");
    loom.env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target)
        .args(["--release", "-p", "shm-ring", "--test", "loom"]);
    execute(&mut loom)
}

/// Installs the packages that the tests need, or fails if one is missing. Shows the kernel's
/// tracepoints to the tests.
pub(crate) fn install_missing(on_missing: OnMissing) -> Result<()> {
    mount_tracefs(on_missing)?;
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing, on_missing)?;
    let still = missing_packages();
    if !still.is_empty() {
        bail!("still missing after the installation: {}", still.join(" "));
    }
    Ok(())
}

/// Mounts the file system of the kernel's tracepoints, unless it is there or this process may not.
/// The tests that need it report that they do.
fn mount_tracefs(on_missing: OnMissing) -> Result<()> {
    const FOLDER: &str = "/sys/kernel/tracing";
    let is_there = Path::new(FOLDER).join("events").exists();
    let may_mount =
        matches!(on_missing, OnMissing::Install) && matches!(Installer::find(), Installer::Root);
    if is_there || !may_mount {
        return Ok(());
    }
    let mut mount = Command::new("mount");
    mount.args(["-t", "tracefs", "tracefs", FOLDER]);
    match execute(&mut mount) {
        Ok(()) => Ok(()),
        Err(error) => say(&format!(
            "tests of kernel tracepoints cannot run: {error:#}"
        )),
    }
}

/// Installs packages, or fails with the command that does.
fn install(packages: &[&str], on_missing: OnMissing) -> Result<()> {
    let mut words = INSTALL.to_vec();
    words.extend(packages);
    let installer = match on_missing {
        OnMissing::Install => Installer::find(),
        OnMissing::Fail => Installer::Nobody,
    };
    // A fresh machine has no lists of packages yet.
    let words_of_install = words.join(" ");
    for words in [&["apt-get", "update"][..], &words] {
        let mut command = match installer {
            Installer::Root => Command::new(words[0]),
            Installer::Sudo => {
                let mut sudo = Command::new("sudo");
                sudo.args(["-n", words[0]]);
                sudo
            }
            Installer::Nobody => bail!(
                "no test was run: packages are missing that the tests need; install them, as root, with\n\n    \
                 apt-get update && {words_of_install}\n"
            ),
        };
        command
            .args(&words[1..])
            .env("DEBIAN_FRONTEND", "noninteractive");
        execute(&mut command)?;
    }
    Ok(())
}

// === impl Phases ===

impl Phases {
    /// Runs a phase, and keeps its time, also if it fails.
    fn time(&mut self, phase: &'static str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        let result = run();
        self.0.push((phase, begun.elapsed().as_secs()));
        result
    }

    /// Prints one line with all phases.
    fn show(&self) -> Result<()> {
        let times: Vec<String> = self
            .0
            .iter()
            .map(|(phase, seconds)| format!("{phase} {} min {} s", seconds / 60, seconds % 60))
            .collect();
        say(&format!("times: {}", times.join(", ")))
    }
}

// === impl Installer ===

impl Installer {
    fn find() -> Self {
        if nix::unistd::geteuid().is_root() {
            return Installer::Root;
        }
        let allowed = Command::new("sudo").args(["-n", "true"]).output();
        match allowed {
            Ok(output) if output.status.success() => Installer::Sudo,
            Ok(_) | Err(_) => Installer::Nobody,
        }
    }
}
