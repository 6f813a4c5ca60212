//! External programs that tests need, each with its Debian 12 package. `cargo xtask test` installs
//! them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

/// A program from outside the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tool {
    /// The C compiler of most fixtures.
    Clang19,
    /// The C++ compiler of most fixtures.
    ClangXx19,
    /// A compiler that puts tail sleds before conditional jumps.
    Clang14,
    /// The compiler of the demo program.
    Rustc,
    /// A disassembler.
    LlvmObjdump19,
    /// The reader of LLVM's own logs.
    LlvmXray19,
    /// The linker of LLVM.
    Lld19,
    /// A debugger that must be able to attach while xrayd traces.
    Gdb,
    /// A tracer that must be able to attach while xrayd traces.
    Strace,
    /// The judge of unit files.
    SystemdAnalyze,
    /// An interpreter for a client in another language. It is Debian's, which finds Debian's
    /// packages.
    Python3,
    /// Removes symbols from a program.
    Strip,
    /// The reader of callgrind's profiles.
    CallgrindAnnotate,
    /// The reader of pprof's profiles.
    Pprof,
    /// The reader of the Common Trace Format.
    Babeltrace2,
    /// Another tracer that writes this format.
    Lttng,
    /// The judge of rules for Prometheus.
    Promtool,
    /// The recorder of Linux.
    Perf,
    /// Builds real programs.
    Make,
    /// Unpacks Debian's source packages.
    DpkgSource,
    /// Makes one file of SQLite's many.
    Tclsh,
    /// The browser that opens reports.
    Chromium,
    /// The driver of the browser's pointer and keys.
    Chromedriver,
}

/// A library that traces `malloc` with LTTng in the program that loads it.
pub const LTTNG_MALLOC: &str = "/usr/lib/x86_64-linux-gnu/liblttng-ust-libc-wrapper.so.1";
/// LTTng's libraries that trace the calls of programs that are compiled for it: with the functions
/// of exits, and without. They come with the one above.
pub const LTTNG_CALLS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/liblttng-ust-cyg-profile.so.1",
    "/usr/lib/x86_64-linux-gnu/liblttng-ust-cyg-profile-fast.so.1",
];

/// A program, or a library without one, that is present if its package is installed.
struct Need {
    package: &'static str,
    present: fn() -> bool,
}

const NEEDS: &[Need] = &[
    Need {
        package: "clang-19",
        present: || Tool::Clang19.is_present(),
    },
    Need {
        package: "llvm-19",
        present: || Tool::LlvmXray19.is_present(),
    },
    Need {
        package: "lld-19",
        present: || Tool::Lld19.is_present(),
    },
    Need {
        package: "libclang-rt-19-dev",
        present: xray_runtime_present,
    },
    Need {
        package: "clang-14",
        present: || Tool::Clang14.is_present(),
    },
    // Runs the machine code of AArch64.
    Need {
        package: "qemu-user",
        present: || Path::new("/usr/bin/qemu-aarch64").exists(),
    },
    Need {
        package: "binutils",
        present: || Tool::Strip.is_present(),
    },
    Need {
        package: "libc6-dev",
        present: || Path::new("/usr/include/stdio.h").exists(),
    },
    Need {
        package: "musl-dev",
        present: || Path::new("/usr/lib/x86_64-linux-musl/libc.a").exists(),
    },
    Need {
        package: "libstdc++-12-dev",
        present: || Path::new("/usr/include/c++/12/cstdint").exists(),
    },
    Need {
        package: "valgrind",
        present: || Tool::CallgrindAnnotate.is_present(),
    },
    Need {
        package: "golang-1.19-go",
        present: || Tool::Pprof.is_present(),
    },
    Need {
        package: "babeltrace2",
        present: || Tool::Babeltrace2.is_present(),
    },
    Need {
        package: "lttng-tools",
        present: || Tool::Lttng.is_present(),
    },
    Need {
        package: "prometheus",
        present: || Tool::Promtool.is_present(),
    },
    Need {
        package: "linux-perf",
        present: || Tool::Perf.is_present(),
    },
    Need {
        package: "liblttng-ust1",
        present: || Path::new(LTTNG_MALLOC).exists(),
    },
    Need {
        package: "make",
        present: || Tool::Make.is_present(),
    },
    Need {
        package: "dpkg-dev",
        present: || Tool::DpkgSource.is_present(),
    },
    Need {
        package: "tcl",
        present: || Tool::Tclsh.is_present(),
    },
    Need {
        package: "chromium",
        present: || Tool::Chromium.is_present(),
    },
    Need {
        package: "chromium-driver",
        present: || Tool::Chromedriver.is_present(),
    },
    Need {
        package: "python3-venv",
        present: || Path::new("/usr/lib/python3.11/ensurepip").is_dir(),
    },
    Need {
        package: "gdb",
        present: || Tool::Gdb.is_present(),
    },
    Need {
        package: "strace",
        present: || Tool::Strace.is_present(),
    },
    Need {
        package: "systemd",
        present: || Tool::SystemdAnalyze.is_present(),
    },
    Need {
        package: "python3",
        present: || Tool::Python3.is_present(),
    },
    Need {
        package: "python3-grpcio",
        present: || python_module_present("grpc"),
    },
    Need {
        package: "python3-protobuf",
        present: || python_module_present("google/protobuf"),
    },
    // A reader of metrics from another project.
    Need {
        package: "python3-prometheus-client",
        present: || python_module_present("prometheus_client"),
    },
];

/// The Debian packages that tests need and that are not installed.
#[must_use]
pub fn missing_packages() -> Vec<&'static str> {
    NEEDS
        .iter()
        .filter(|need| !(need.present)())
        .map(|need| need.package)
        .collect()
}

// === impl Tool ===

impl Tool {
    /// The program's name and its Debian package.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Tool::Clang19 => ("clang-19", "clang-19"),
            Tool::ClangXx19 => ("clang++-19", "clang-19"),
            Tool::Clang14 => ("clang-14", "clang-14"),
            Tool::Rustc => ("rustc", "rustc"),
            Tool::LlvmObjdump19 => ("llvm-objdump-19", "llvm-19"),
            Tool::LlvmXray19 => ("llvm-xray-19", "llvm-19"),
            Tool::Lld19 => ("ld.lld-19", "lld-19"),
            Tool::Gdb => ("gdb", "gdb"),
            Tool::Strace => ("strace", "strace"),
            Tool::SystemdAnalyze => ("systemd-analyze", "systemd"),
            Tool::Python3 => ("/usr/bin/python3", "python3"),
            Tool::Strip => ("strip", "binutils"),
            Tool::CallgrindAnnotate => ("callgrind_annotate", "valgrind"),
            Tool::Babeltrace2 => ("babeltrace2", "babeltrace2"),
            Tool::Lttng => ("lttng", "lttng-tools"),
            Tool::Promtool => ("promtool", "prometheus"),
            Tool::Perf => ("perf", "linux-perf"),
            Tool::Make => ("make", "make"),
            Tool::DpkgSource => ("dpkg-source", "dpkg-dev"),
            Tool::Tclsh => ("tclsh", "tcl"),
            Tool::Chromium => ("chromium", "chromium"),
            Tool::Chromedriver => ("chromedriver", "chromium-driver"),
            Tool::Pprof => (
                "/usr/lib/go-1.19/pkg/tool/linux_amd64/pprof",
                "golang-1.19-go",
            ),
        }
    }

    /// The path of the program.
    ///
    /// # Errors
    /// The program is not installed. The error names the package.
    pub fn path(self) -> Result<PathBuf> {
        let (program, package) = self.names();
        find_program(program).with_context(|| {
            format!(
                "{program} is not installed: apt-get install {package} (or run `cargo xtask test`)"
            )
        })
    }

    /// A command line that begins with this program, in the plain C locale.
    ///
    /// # Errors
    /// The program is not installed.
    pub fn command(self) -> Result<Command> {
        let mut command = Command::new(self.path()?);
        command.env("LC_ALL", "C");
        Ok(command)
    }

    /// Runs the program to its end and returns its standard output.
    ///
    /// # Errors The program is not installed, cannot be started, or fails. The message has its
    /// standard error.
    pub fn run<I, A>(self, arguments: I) -> Result<String>
    where
        I: IntoIterator<Item = A>,
        A: AsRef<std::ffi::OsStr>,
    {
        output_of(self.command()?.args(arguments))
    }

    fn is_present(self) -> bool {
        find_program(self.names().0).is_some()
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Runs `command`. An error has the whole command line and the standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}\n{}", String::from_utf8_lossy(&stderr));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

fn xray_runtime_present() -> bool {
    Path::new("/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.xray-x86_64.a").exists()
}

fn python_module_present(module: &str) -> bool {
    Path::new("/usr/lib/python3/dist-packages")
        .join(module)
        .is_dir()
}
