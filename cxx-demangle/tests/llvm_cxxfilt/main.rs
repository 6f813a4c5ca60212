//! Names compared with `llvm-cxxfilt`: those of every C++ symbol of large libraries, and of a
//! program that uses most of the language.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use cxx_demangle::demangle;

const CLANGXX: Tool = Tool {
    program: "clang++-19",
    package: "clang-19",
};
const NM: Tool = Tool {
    program: "llvm-nm-19",
    package: "llvm-19",
};
const CXXFILT: Tool = Tool {
    program: "llvm-cxxfilt-19",
    package: "llvm-19",
};

/// The longest name that is compared, in bytes.
const LONGEST: usize = 32 * 1024;

/// A program of the machine, and its Debian package.
#[derive(Clone, Copy)]
struct Tool {
    program: &'static str,
    package: &'static str,
}

// === impl Tool ===

impl Tool {
    /// Runs the tool, and returns its output. The test fails unless the tool succeeds.
    fn run(self, arguments: &[&str], folder: &Path, input: Stdio) -> String {
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

/// The symbols with another name in LLVM, and the number of symbols that LLVM has a name for.
fn compare(folder: &Path, symbols: &[&str]) -> (Vec<String>, usize) {
    let path = folder.join("symbols");
    fs::write(&path, symbols.join("\n") + "\n").unwrap();
    let theirs = CXXFILT.run(&[], folder, File::open(path).unwrap().into());
    let (mut different, mut named) = (Vec::new(), 0);
    for (symbol, theirs) in symbols.iter().zip(theirs.lines()) {
        if theirs == *symbol {
            continue;
        }
        named += 1;
        let ours = demangle(symbol, LONGEST, &mut 0);
        if ours.as_deref() != Some(theirs) {
            different.push(format!("{symbol}: {theirs}: {ours:?}"));
        }
    }
    (different, named)
}

/// C++ functions, each once. `llvm-cxxfilt` takes `$` for the end of a symbol, and prints `...` for
/// a pack that is declared and empty.
fn functions(listed: &str) -> Vec<&str> {
    let mut symbols: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|symbol| symbol.split_once('@').map_or(symbol, |(symbol, _)| symbol))
        .filter(|symbol| symbol.starts_with("_Z") && symbol.len() <= 4096)
        .filter(|symbol| !symbol.contains('$') && !symbol.contains("TpTnmJEE"))
        .collect();
    symbols.sort_unstable();
    symbols.dedup();
    symbols
}

#[test]
fn every_name_of_large_libraries_is_spelled_as_llvm_spells_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let standard = CLANGXX.run(&["-print-file-name=libstdc++.so"], folder, Stdio::null());
    for (library, at_least) in [
        (standard.trim(), 4_000),
        ("/usr/lib/llvm-19/lib/libclang-cpp.so.19.1", 20_000),
    ] {
        assert!(Path::new(library).exists(), "{library}: install clang-19");
        let listed = NM.run(&["-D", library], folder, Stdio::null());
        let (different, named) = compare(folder, &functions(&listed));
        assert!(named > at_least, "{library}: {named}");
        assert_eq!(different, [""; 0], "{library}");
    }
}

#[test]
fn every_name_of_a_modern_program_is_spelled_as_llvm_spells_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("names.cc"), include_str!("names.cc")).unwrap();
    for standard in ["-std=gnu++17", "-std=gnu++20"] {
        CLANGXX.run(
            &[standard, "-w", "-c", "names.cc", "-o", "names.o"],
            folder,
            Stdio::null(),
        );
        let listed = NM.run(&["names.o"], folder, Stdio::null());
        let (different, named) = compare(folder, &functions(&listed));
        assert!(named > 1_500, "{standard}: {named}");
        assert_eq!(different, [""; 0], "{standard}");
    }
}
