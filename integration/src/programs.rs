//! Real programs from Debian's source packages, and a Rust service, with a sled in every function.
//! Nothing here starts them.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::binaries::{target_dir, workspace_dir};
use crate::cache::once;
use crate::debian;
use crate::tool::{Tool, output_of};

/// Options for sleds. They go into the compiler's name, so that they reach every bundled library
/// too.
const SLEDS: &str = "-fxray-instrument -fxray-instruction-threshold=1";

/// Options for LLVM's runtime with all of its modes; by default one of them is not linked.
const MODES: &str = "-fxray-modes=xray-basic,xray-fdr,xray-profiling";

/// Options against a runtime that would switch the sleds.
const NO_RUNTIME: &str = "-fno-xray-link-deps";

/// Code that switches on those modes of LLVM's runtime that the environment alone does not.
const LLVM_MODE: &str = include_str!("../fixtures/llvmmode.cpp");

/// The time limit of a build, in seconds.
const LIMIT: &str = "1200";

/// The target of a Rust program that is built by itself. With a target named, flags do not reach
/// code that runs during the build.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// A real program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// `redis-server` and `redis-benchmark`.
    Redis,
    /// The same with LLVM's runtime, which records in the mode that `BENCH_XRAY` names.
    RedisLlvm,
    /// `sqlite3`, the shell, and `speedtest1`.
    Sqlite,
    /// `nginx` with its standard modules, without those that need libraries.
    Nginx,
    /// `service`, of `integration/service`.
    Service,
}

/// A program that was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The directory of its programs.
    pub dir: PathBuf,
    /// Name and version, in Debian's form: "redis 7.0.15".
    pub version: String,
}

/// Fetches the program's source and builds it, unless that was done before.
///
/// # Errors
/// The source cannot be had, a tool is missing (the error names the package), or a compiler reports
/// an error.
pub fn build_program(program: Program) -> Result<Built> {
    let Some(package) = program.package() else {
        return service();
    };
    let source = debian::source(package)?;
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let steps = program.steps()?;
    let mut hasher = DefaultHasher::new();
    (name.as_ref(), &steps, LLVM_MODE).hash(&mut hasher);
    let kept = format!("{program:?}").to_lowercase();
    let dir = once(&kept, hasher.finish(), |work| {
        let tree = work.join("build");
        output_of(Command::new("cp").arg("-r").arg(&source).arg(&tree))?;
        for step in steps {
            let mut command = Command::new("timeout");
            command
                .args(["--kill-after=10", LIMIT])
                .args(step)
                .current_dir(&tree);
            output_of(&mut command)?;
        }
        for file in program.files() {
            let from = tree.join(file);
            let to = work.join(from.file_name().unwrap_or_default());
            fs::rename(&from, to).with_context(|| format!("{} was not built", from.display()))?;
        }
        fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))
    })?;
    Ok(Built {
        dir,
        version: name.replace('-', " "),
    })
}

/// Builds the service by cargo, as any service is built. Its dependencies have sleds too, and the
/// standard library has none.
fn service() -> Result<Built> {
    const NAME: &str = "service";
    let root = workspace_dir();
    let mut hasher = DefaultHasher::new();
    for file in [
        "Cargo.lock",
        "integration/service/Cargo.toml",
        "integration/service/src/main.rs",
    ] {
        let path = root.join(file);
        fs::read(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .hash(&mut hasher);
    }
    // The output has the compiler's version.
    Tool::Rustc.run(["--version"])?.hash(&mut hasher);
    let target = target_dir()?.join("fixtures").join("service-target");
    let dir = once(NAME, hasher.finish(), |work| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--release", "--locked", "--package", "service"])
            .args(["--target", HOST, "--target-dir"])
            .arg(&target)
            .current_dir(&root)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zinstrument-xray=always")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        output_of(&mut command)?;
        let built = target.join(HOST).join("release").join(NAME);
        fs::copy(&built, work.join(NAME))
            .with_context(|| format!("{} was not built", built.display()))?;
        Ok(())
    })?;
    Ok(Built {
        dir,
        version: "tokio".to_owned(),
    })
}

// === impl Program ===

impl Program {
    /// Debian's name of the source package; none for a program of this project.
    const fn package(self) -> Option<&'static str> {
        match self {
            Self::Redis | Self::RedisLlvm => Some("redis"),
            Self::Sqlite => Some("sqlite3"),
            Self::Nginx => Some("nginx"),
            Self::Service => None,
        }
    }

    /// The files of the built tree that are kept.
    const fn files(self) -> &'static [&'static str] {
        match self {
            Self::Redis | Self::RedisLlvm => &["src/redis-server", "src/redis-benchmark"],
            Self::Sqlite => &["sqlite3", "speedtest1"],
            Self::Nginx => &["objs/nginx"],
            Self::Service => &[],
        }
    }

    /// The commands that build it in a copy of its source.
    fn steps(self) -> Result<Vec<Vec<String>>> {
        let clang = Tool::Clang19.path()?.display().to_string();
        let make = Tool::Make.path()?.display().to_string();
        let step = |program: &str, words: &[&str]| -> Vec<String> {
            std::iter::once(program)
                .chain(words.iter().copied())
                .map(str::to_owned)
                .collect()
        };
        let redis = |flags: &str, objects: &str| {
            step(
                &make,
                &[
                    "-j2",
                    "-C",
                    "src",
                    &format!("CC={clang} {flags}"),
                    "MALLOC=libc",
                    "BUILD_TLS=no",
                    "USE_SYSTEMD=no",
                    &format!("REDIS_LDFLAGS={objects}"),
                    "redis-server",
                    "redis-benchmark",
                ],
            )
        };
        let plain = format!("{SLEDS} {NO_RUNTIME}");
        Ok(match self {
            Self::Redis => vec![redis(&plain, "")],
            Self::RedisLlvm => {
                let code = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/llvmmode.cpp");
                let cxx = Tool::ClangXx19.path()?.display().to_string();
                // Without sleds of its own, and not in `src`: there Redis' makefile would remove it
                // as a file of an earlier build.
                let mode = ["-c", "-O2", code, "-o", "llvmmode.o"];
                vec![
                    step(&cxx, &mode),
                    redis(&format!("{SLEDS} {MODES}"), "../llvmmode.o"),
                ]
            }
            Self::Sqlite => {
                Tool::Tclsh.path()?;
                let compile: Vec<&str> = ["-O2", "-fno-strict-aliasing", "-I."]
                    .into_iter()
                    .chain(plain.split(' '))
                    .chain(SQLITE.iter().copied())
                    .collect();
                let link = |code: &str, program: &str| {
                    let files = [code, "sqlite3.o", "-lm", "-o", program];
                    step(&clang, &[&compile[..], &files].concat())
                };
                let amalgamate = [
                    "-f",
                    "main.mk",
                    "TOP=.",
                    &format!("BCC={clang}"),
                    "OPTS=",
                    "sqlite3.c",
                    "shell.c",
                ];
                vec![
                    step(&make, &amalgamate),
                    step(
                        &clang,
                        &[&compile[..], &["-c", "sqlite3.c", "-o", "sqlite3.o"]].concat(),
                    ),
                    link("shell.c", "sqlite3"),
                    link("test/speedtest1.c", "speedtest1"),
                ]
            }
            Self::Nginx => {
                let configure = [
                    &format!("--with-cc={clang}"),
                    &format!("--with-cc-opt=-O2 -Wno-error {SLEDS}"),
                    &format!("--with-ld-opt={plain}"),
                    // These modules need libraries.
                    "--without-http_rewrite_module",
                    "--without-http_gzip_module",
                    "--with-http_addition_module",
                    "--with-http_sub_module",
                    "--with-threads",
                ];
                vec![step("./configure", &configure), step(&make, &["-j2"])]
            }
            Self::Service => Vec::new(),
        })
    }
}

/// Parts of SQLite that are not in by default.
const SQLITE: &[&str] = &[
    "-DSQLITE_THREADSAFE=1",
    "-DSQLITE_ENABLE_FTS5",
    "-DSQLITE_ENABLE_RTREE",
    "-DSQLITE_ENABLE_MATH_FUNCTIONS",
];
