//! Compilers, and the tools whose output is the reference for ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A program of the machine, and its Debian package.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const CLANG: Tool = Tool {
    program: "clang-19",
    package: "clang-19",
};
pub(crate) const CLANGXX: Tool = Tool {
    program: "clang++-19",
    package: "clang-19",
};
pub(crate) const CLANG_14: Tool = Tool {
    program: "clang-14",
    package: "clang-14",
};
pub(crate) const LLVM_XRAY: Tool = Tool {
    program: "llvm-xray-19",
    package: "llvm-19",
};
pub(crate) const LLD: Tool = Tool {
    program: "ld.lld-19",
    package: "lld-19",
};
pub(crate) const NM: Tool = Tool {
    program: "llvm-nm-19",
    package: "llvm-19",
};
pub(crate) const CXXFILT: Tool = Tool {
    program: "llvm-cxxfilt-19",
    package: "llvm-19",
};
/// For Mach-O files.
pub(crate) const LD64: Tool = Tool {
    program: "ld64.lld-19",
    package: "lld-19",
};
pub(crate) const SYMBOLIZER: Tool = Tool {
    program: "llvm-symbolizer-19",
    package: "llvm-19",
};
pub(crate) const STRIP: Tool = Tool {
    program: "strip",
    package: "binutils",
};
/// For files of every processor.
pub(crate) const STRIP_LLVM: Tool = Tool {
    program: "llvm-strip-19",
    package: "llvm-19",
};
pub(crate) const OBJCOPY: Tool = Tool {
    program: "objcopy",
    package: "binutils",
};

/// The options of every XRay compilation. The option for no runtime library is not among them,
/// because it was renamed.
const XRAY: [&str; 3] = ["-fxray-instrument", "-fxray-instruction-threshold=1", "-O2"];

/// A folder for one test.
pub(crate) struct Workbench {
    folder: TempDir,
}

/// A line of `llvm-xray extract`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extracted {
    pub(crate) id: u32,
    pub(crate) address: u64,
    pub(crate) function: u64,
    pub(crate) kind: String,
    pub(crate) always: bool,
    pub(crate) name: String,
    pub(crate) version: u8,
}

impl Tool {
    /// Runs the tool; the test fails unless it succeeds.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(self, arguments: &[S], folder: &Path) -> String {
        self.run_on(arguments, folder, Stdio::null())
    }

    fn run_on<S: AsRef<std::ffi::OsStr>>(
        self,
        arguments: &[S],
        folder: &Path,
        input: Stdio,
    ) -> String {
        let output = Command::new(self.program)
            .args(arguments)
            .current_dir(folder)
            .stdin(input)
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!(
                "cannot run {}: {error}; install it with: apt-get install {}",
                self.program, self.package
            )
        });
        assert!(
            output.status.success(),
            "{} failed:\n{}",
            self.program,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Workbench {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn run(&self, tool: Tool, arguments: &[&str]) -> String {
        tool.run(arguments, self.folder.path())
    }

    /// The same with a file as the tool's input.
    pub(crate) fn run_on(&self, tool: Tool, arguments: &[&str], input: &str) -> String {
        let input = std::fs::File::open(self.path(input)).unwrap();
        tool.run_on(arguments, self.folder.path(), input.into())
    }

    /// Compiles `source` to `out` with XRay and these further arguments.
    pub(crate) fn compile(&self, tool: Tool, source: &str, out: &str, arguments: &[&str]) {
        let old = tool.program == CLANG_14.program;
        let no_runtime = if old {
            "-fnoxray-link-deps"
        } else {
            "-fno-xray-link-deps"
        };
        let all = XRAY
            .into_iter()
            .chain([no_runtime])
            .chain(arguments.iter().copied());
        let all: Vec<_> = all.chain([source, "-o", out]).collect();
        self.run(tool, &all);
    }

    /// Compiles a Rust program with sleds in every function, and these further arguments.
    pub(crate) fn compile_rust(&self, source: &str, out: &str, arguments: &[&str]) {
        let output = Command::new("rustc")
            .env("RUSTC_BOOTSTRAP", "1")
            .args([
                "-Zinstrument-xray=always",
                "--edition=2021",
                "-Cdebuginfo=1",
                "-o",
                out,
                source,
            ])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .expect("cannot run rustc; install Rust");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// The map of a file as `llvm-xray` reads it, with the linker's symbols.
    pub(crate) fn extract(&self, file: &str) -> Vec<Extracted> {
        let yaml = self.run(
            LLVM_XRAY,
            &["extract", "--symbolize", "--no-demangle", file],
        );
        yaml.lines()
            .filter(|line| line.starts_with("- {"))
            .map(Extracted::from_line)
            .collect()
    }
}

impl Extracted {
    /// Parses `- { id: 1, address: 0x27A50, function: 0x27A50, kind: function-enter,
    /// always-instrument: true, function-name: leaf, version: 2 }`.
    fn from_line(line: &str) -> Self {
        let field = |name: &str| {
            let (_, rest) = line
                .split_once(&format!(" {name}: "))
                .unwrap_or_else(|| panic!("{line}"));
            rest.split_once([',', ' '])
                .unwrap()
                .0
                .trim_matches('\'')
                .to_owned()
        };
        let hex = |name| u64::from_str_radix(field(name).trim_start_matches("0x"), 16).unwrap();
        Self {
            id: field("id").parse().unwrap(),
            address: hex("address"),
            function: hex("function"),
            kind: field("kind"),
            always: field("always-instrument") == "true",
            name: field("function-name"),
            version: field("version").parse().unwrap(),
        }
    }
}
