//! Names of Rust compared with `llvm-cxxfilt`. The crate `cxx-demangle` compares those of C++.

use xray_trace::instr_map::Object;

use crate::compilers::RUST_PROGRAM;
use crate::image::{BASE, Image, entry};
use crate::toolchain::{CXXFILT, NM, Workbench};

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
        .map(|function| function.name.to_string())
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
