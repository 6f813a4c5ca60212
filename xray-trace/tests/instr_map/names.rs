//! Names compared with `llvm-cxxfilt`: those of every C++ symbol of large libraries, and of a
//! program that uses most of the language.

use std::path::Path;

use xray_trace::instr_map::Object;

use crate::compilers::RUST_PROGRAM;
use crate::image::{BASE, Image, entry};
use crate::toolchain::{CLANGXX, CXXFILT, NM, Workbench};

/// The reader's names of functions with these symbols.
fn ours(symbols: &[&str]) -> Vec<String> {
    if symbols.is_empty() {
        return Vec::new();
    }
    let count = symbols.len() as u64;
    let map = (0..count).flat_map(|number| entry(BASE + number, BASE + number, 0, 0));
    let mut strings = vec![0];
    let mut table = Vec::new();
    for (symbol, number) in symbols.iter().zip(0..) {
        table.push((u32::try_from(strings.len()).unwrap(), BASE + number));
        strings.extend(symbol.bytes().chain([0]));
    }
    let file = Image::default()
        .with("xray_instr_map", map.collect())
        .with_symbols(&table, strings)
        .build();
    let object = Object::parse(&file).unwrap();
    assert_eq!(object.functions().len(), symbols.len());
    object
        .functions()
        .iter()
        .map(|function| function.name.clone())
        .collect()
}

/// The symbols with another name in LLVM, and the number of symbols that LLVM has a name for.
fn compare(bench: &Workbench, symbols: &[&str]) -> (Vec<String>, usize) {
    let input = symbols.join("\n") + "\n";
    bench.write("symbols", &input);
    let theirs = bench.run_on(CXXFILT, &[], "symbols");
    let (mut different, mut named) = (Vec::new(), 0);
    for ((symbol, theirs), ours) in symbols.iter().zip(theirs.lines()).zip(ours(symbols)) {
        if theirs == *symbol {
            continue;
        }
        named += 1;
        if theirs != ours {
            different.push(format!("{symbol}: {theirs}: {ours}"));
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
    let bench = Workbench::new();
    let standard = bench.run(CLANGXX, &["-print-file-name=libstdc++.so"]);
    for (library, at_least) in [
        (standard.trim(), 4_000),
        ("/usr/lib/llvm-19/lib/libclang-cpp.so.19.1", 20_000),
    ] {
        assert!(Path::new(library).exists(), "{library}: install clang-19");
        let listed = bench.run(NM, &["-D", library]);
        let (different, named) = compare(&bench, &functions(&listed));
        assert!(named > at_least, "{library}: {named}");
        assert_eq!(different, [""; 0], "{library}");
    }
}

#[test]
fn every_name_of_a_modern_program_is_spelled_as_llvm_spells_it() {
    let bench = Workbench::new();
    bench.write("names.cc", include_str!("names.cc"));
    for standard in ["-std=gnu++17", "-std=gnu++20"] {
        bench.run(
            CLANGXX,
            &[standard, "-w", "-c", "names.cc", "-o", "names.o"],
        );
        let listed = bench.run(NM, &["names.o"]);
        let (different, named) = compare(&bench, &functions(&listed));
        assert!(named > 1_500, "{standard}: {named}");
        assert_eq!(different, [""; 0], "{standard}");
    }
}

/// Rust's own mangling. For Rust's first mangling, which is C++'s, LLVM shows the escapes and the
/// hash.
#[test]
fn names_of_rust_are_spelled_as_llvm_spells_them() {
    let bench = Workbench::new();
    bench.write("names.rs", RUST_PROGRAM);
    for mangling in ["v0", "legacy"] {
        let version = format!("-Csymbol-mangling-version={mangling}");
        bench.compile_rust("names.rs", "names", &["-Zunstable-options", &version]);
        let listed = bench.run(NM, &["names"]);
        let symbols = listed
            .lines()
            .filter_map(|line| line.split_whitespace().last());
        let (modern, first): (Vec<_>, Vec<_>) = symbols
            .filter(|symbol| symbol.starts_with("_R") || symbol.contains("17h"))
            .partition(|symbol| symbol.starts_with("_R"));
        let expected = if mangling == "v0" { &modern } else { &first };
        assert!(
            expected.iter().any(|symbol| symbol.contains("5names4leaf")),
            "{mangling}"
        );
        let (different, named) = compare(&bench, &modern);
        assert_eq!(different, [""; 0], "{mangling}");
        assert_eq!(named, modern.len(), "{mangling}");
        for name in ours(&first) {
            let is_hash = |part: &str| part.len() == 17 && part.starts_with('h');
            assert!(
                !name.contains('$') && !name.rsplit("::").any(is_hash),
                "{name}"
            );
        }
    }
}
