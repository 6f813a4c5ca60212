//! Source lines, compared with `llvm-symbolizer`.

use xray_trace::instr_map::{Object, SourceError, SourceMap};

use crate::toolchain::{CLANG, OBJCOPY, STRIP, SYMBOLIZER, Workbench};

const PROGRAM: &str = r#"#include "sub/other.h"

__attribute__((noinline)) int leaf(int x) {
  __asm__ volatile("");
  return x + 1;
}

int main(int c, char **v) {
  return leaf(c) + other(c);
}
"#;

const HEADER: &str =
    "__attribute__((noinline)) int other(int x) {\n  __asm__ volatile(\"\");\n  return x;\n}\n";

fn program() -> Workbench {
    let bench = Workbench::new();
    bench.write("p.c", PROGRAM);
    std::fs::create_dir(bench.path("sub")).unwrap();
    bench.write("sub/other.h", HEADER);
    bench
}

/// Checks that every function has the same line as from `llvm-symbolizer`, and the end of its path.
/// DWARF 4 does not write the folder of the compilation into line tables.
fn check(bench: &Workbench, file: &str) {
    let bytes = bench.read(file);
    let object = Object::parse(&bytes).unwrap();
    let map = SourceMap::parse(&bytes, object.functions().iter().map(|f| f.address)).unwrap();
    assert_eq!(map.len(), object.functions().len(), "{file}");
    for function in object.functions() {
        let address = function.address.to_string();
        let json = bench.run(
            SYMBOLIZER,
            &[
                "--no-inlines",
                "--output-style=JSON",
                "--obj",
                file,
                &address,
            ],
        );
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let place = &json[0]["Symbol"][0];
        // In a file with only line tables, the begin of a function is only in the tables.
        let start = place["StartLine"].as_u64().filter(|line| *line != 0);
        let line = start.or(place["Line"].as_u64()).unwrap();
        let path = place["FileName"].as_str().unwrap();
        let found = map.lookup(function.address).unwrap();
        assert_eq!(
            u64::from(found.line),
            line,
            "{file} {}: {place}",
            function.name
        );
        assert!(
            path.ends_with(&found.file),
            "{file} {}: {} in {path}",
            function.name,
            found.file
        );
    }
}

#[test]
fn lines_are_those_that_llvm_finds() {
    let bench = program();
    for (file, arguments) in [
        ("five", &["-g", "-gdwarf-5"][..]),
        ("four", &["-g", "-gdwarf-4"]),
        ("three", &["-g", "-gdwarf-3"]),
        ("wide", &["-g", "-gdwarf-5", "-gdwarf64"]),
        ("lines", &["-gline-tables-only", "-O0"]),
        (
            "collected",
            &["-g", "-ffunction-sections", "-Wl,--gc-sections"],
        ),
        ("absolute", &["-g", "-gdwarf-5", "-no-pie"]),
    ] {
        bench.compile(CLANG, "p.c", file, arguments);
        check(&bench, file);
    }
    let bytes = bench.read("five");
    let object = Object::parse(&bytes).unwrap();
    let other = object
        .functions()
        .iter()
        .find(|function| function.name == "other")
        .unwrap();
    let map = SourceMap::parse(&bytes, [other.address]).unwrap();
    let place = map.lookup(other.address).unwrap();
    assert_eq!(place.line, 1);
    assert!(
        place.file.starts_with('/') && place.file.ends_with("/sub/other.h"),
        "{}",
        place.file
    );
    assert_eq!(map.len(), 1);
}

#[test]
fn a_rust_program_has_lines() {
    let bench = Workbench::new();
    bench.write("p.rs", "#[inline(never)]\nfn leaf() -> u64 {\n    std::hint::black_box(3)\n}\nfn main() {\n    leaf();\n}\n");
    bench.compile_rust("p.rs", "rust", &[]);
    let bytes = bench.read("rust");
    let object = Object::parse(&bytes).unwrap();
    let map = SourceMap::parse(&bytes, object.functions().iter().map(|f| f.address)).unwrap();
    let leaf = object
        .functions()
        .iter()
        .find(|function| function.name == "p::leaf")
        .unwrap();
    let place = map.lookup(leaf.address).unwrap();
    assert!(place.file.ends_with("p.rs"), "{}", place.file);
    assert_eq!(place.line, 2);
}

#[test]
fn a_debug_file_has_the_lines_that_the_stripped_file_lost() {
    let bench = program();
    bench.compile(CLANG, "p.c", "whole", &["-g"]);
    bench.run(OBJCOPY, &["--only-keep-debug", "whole", "debug"]);
    bench.run(STRIP, &["-o", "stripped", "whole"]);
    let stripped = bench.read("stripped");
    let object = Object::parse(&stripped).unwrap();
    let addresses = || object.functions().iter().map(|function| function.address);
    assert_eq!(
        SourceMap::parse(&stripped, addresses()).unwrap_err(),
        SourceError::NoDebugInfo
    );
    let map = SourceMap::parse(&bench.read("debug"), addresses()).unwrap();
    assert_eq!(map.len(), object.functions().len());
}

#[test]
fn compressed_debug_information_is_refused_by_name() {
    let bench = Workbench::new();
    let functions = (0..200).map(|n| format!("int f{n}(int x) {{\n  return x + {n};\n}}\n"));
    bench.write(
        "p.c",
        &format!(
            "{}int main(void) {{ return 0; }}\n",
            functions.collect::<String>()
        ),
    );
    bench.compile(CLANG, "p.c", "squeezed", &["-g", "-gz=zlib"]);
    let error = SourceMap::parse(&bench.read("squeezed"), []).unwrap_err();
    assert!(
        matches!(error, SourceError::Compressed { section } if section.starts_with(".debug_")),
        "{error}"
    );
}
