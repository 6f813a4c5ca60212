//! The output of compilers, compared with the output of LLVM's own tool.

use xray_trace::instr_map::{
    FunctionIndex, Machine, Object, ObjectError, ObjectKind, SledKind, XrayRuntime,
};

use crate::toolchain::{CLANG, CLANG_14, CLANGXX, OBJCOPY, STRIP, Tool, Workbench};

pub(crate) const C_PROGRAM: &str = r#"
__attribute__((noinline)) int leaf(int x) { __asm__ volatile(""); return x + 1; }
__attribute__((noinline)) int twice(int x) { if (x > 3) return leaf(x) * 2; return leaf(x + 1) - 1; }
__attribute__((noinline)) int tail(int x) { __asm__ volatile(""); return twice(x + 2); }
__attribute__((noinline, xray_always_instrument, xray_log_args(1)))
int logged(int x) { __asm__ volatile(""); return x ^ 5; }
__attribute__((noinline)) static int hidden(int x) { __asm__ volatile(""); return x - 7; }
__attribute__((xray_never_instrument)) int never(int x) { return x; }
__attribute__((noinline)) void event(void) { __xray_customevent("abc", 3); }
__attribute__((xray_never_instrument)) void __xray_CustomEvent(const char *p, unsigned long n) {}
int main(int c, char **v) { event(); return tail(c) + logged(c) + hidden(c) + never(c); }
"#;

pub(crate) const CXX_PROGRAM: &str = r#"
namespace ns {
struct A {
  int n;
  __attribute__((noinline)) A(int n) : n(n) { __asm__ volatile(""); }
  __attribute__((noinline)) virtual ~A() { __asm__ volatile(""); }
  __attribute__((noinline)) int operator()(int x) const { __asm__ volatile(""); return x + n; }
};
template <class T> __attribute__((noinline)) T max(T a, T b) { __asm__ volatile(""); return a < b ? b : a; }
}
namespace { __attribute__((noinline)) int quiet(int x) { __asm__ volatile(""); return x; } }
extern "C" __attribute__((noinline)) int plain(int x) { __asm__ volatile(""); return x; }
int main(int c, char **) {
  ns::A a(c);
  auto lambda = [&](int x) __attribute__((noinline)) { __asm__ volatile(""); return x + a.n; };
  return a(1) + ns::max(c, 2) + (int)ns::max(1.5, 2.5) + quiet(c) + plain(c) + lambda(c);
}
"#;

pub(crate) const RUST_PROGRAM: &str = r#"
#[inline(never)] fn leaf(x: u64) -> u64 { std::hint::black_box(x) + 1 }
trait Shape { fn area(&self) -> u64; }
struct Square(u64);
impl Shape for Square { #[inline(never)] fn area(&self) -> u64 { leaf(self.0) } }
#[inline(never)] fn generic<T: Into<u64>>(t: T) -> u64 { leaf(t.into()) }
fn main() { println!("{}", Square(2).area() + generic(3_u32) + generic(4_u8)); }
"#;

/// Checks that all data that both readers have of the file is the same.
fn check(bench: &Workbench, file: &str) -> Object {
    let object = Object::parse(&bench.read(file)).unwrap();
    let expected = bench.extract(file);
    assert!(expected.len() > 5, "{file}: {expected:?}");
    assert_eq!(object.sleds().len(), expected.len(), "{file}");
    assert!(
        object.warnings().is_empty(),
        "{file}: {:?}",
        object.warnings()
    );
    let mut rows = expected.iter();
    for (function, id) in object.functions().iter().zip(1..) {
        assert_eq!(function.id, id);
        for (sled, row) in object.sleds_of(function).iter().zip(&mut rows) {
            let found = (
                function.id,
                sled.address.0,
                sled.function.0,
                kind_name(sled.kind),
            );
            assert_eq!(
                found,
                (row.id, row.address, row.function, row.kind.as_str()),
                "{file}"
            );
            assert_eq!(
                (sled.always_instrument, sled.version),
                (row.always, row.version),
                "{file}"
            );
            assert_eq!(sled.function, function.address);
            if let Some(symbol) = &function.symbol {
                assert_eq!(symbol.as_str(), row.name, "{file} {}", function.address);
            }
        }
    }
    assert_eq!(
        rows.next(),
        None,
        "{file}: sleds that belong to no function"
    );
    object
}

/// The words of `llvm-xray`.
fn kind_name(kind: SledKind) -> &'static str {
    match kind {
        SledKind::Entry => "function-enter",
        SledKind::Exit => "function-exit",
        SledKind::TailExit => "tail-exit",
        SledKind::EntryWithArgument => "log-args-enter",
        SledKind::CustomEvent => "custom-event",
        SledKind::TypedEvent => "typed-event",
        SledKind::Unknown(_) => "unknown",
    }
}

fn named<'o>(object: &'o Object, name: &str) -> &'o xray_trace::instr_map::MapFunction {
    let found: Vec<_> = object
        .functions()
        .iter()
        .filter(|f| f.name == name)
        .collect();
    let all: Vec<_> = object.functions().iter().map(|f| &f.name).collect();
    assert_eq!(found.len(), 1, "{name} in {all:?}");
    found[0]
}

#[test]
fn maps_of_clang_are_read_as_llvm_reads_them() {
    use FunctionIndex::{Absent, Addresses, Distances};
    use ObjectKind::{Executable, PieExecutable, SharedLibrary};
    let bench = Workbench::new();
    bench.write("p.c", C_PROGRAM);
    // In clang 14 the option has the opposite meaning.
    const INDEX_14: &str = "-fno-xray-function-index";
    type Row = (
        &'static str,
        Tool,
        &'static [&'static str],
        ObjectKind,
        bool,
        FunctionIndex,
    );
    let rows: &[Row] = &[
        (
            "pie",
            CLANG,
            &["-fPIE", "-pie"],
            PieExecutable,
            true,
            Distances,
        ),
        (
            "fixed",
            CLANG,
            &["-fno-pie", "-no-pie"],
            Executable,
            true,
            Distances,
        ),
        ("static", CLANG, &["-static"], Executable, false, Distances),
        (
            "static-pie",
            CLANG,
            &["-fPIE", "-static-pie"],
            PieExecutable,
            false,
            Distances,
        ),
        (
            "lib.so",
            CLANG,
            &["-fPIC", "-shared"],
            SharedLibrary,
            false,
            Distances,
        ),
        (
            "no-index",
            CLANG,
            &["-fno-xray-function-index"],
            PieExecutable,
            true,
            Absent,
        ),
        (
            "sections",
            CLANG,
            &["-ffunction-sections", "-Wl,--gc-sections"],
            PieExecutable,
            true,
            Distances,
        ),
        (
            "old-pie",
            CLANG_14,
            &["-fPIE", "-pie", INDEX_14],
            PieExecutable,
            true,
            Addresses,
        ),
        (
            "old-fixed",
            CLANG_14,
            &["-fno-pie", "-no-pie", INDEX_14],
            Executable,
            true,
            Addresses,
        ),
        (
            "old-lib.so",
            CLANG_14,
            &["-fPIC", "-shared", INDEX_14],
            SharedLibrary,
            false,
            Addresses,
        ),
    ];
    for (file, compiler, arguments, kind, interpreter, index) in rows {
        bench.compile(*compiler, "p.c", file, arguments);
        let object = check(&bench, file);
        assert_eq!(object.machine(), Machine::X86_64);
        assert_eq!(object.kind(), *kind, "{file}");
        assert_eq!(object.interpreter(), *interpreter, "{file}");
        assert_eq!(object.index(), *index, "{file}");
        assert_eq!(object.runtime(), XrayRuntime::Absent, "{file}");
        assert!(
            object
                .build_id()
                .is_some_and(|id| id.to_string().len() == 40),
            "{file}"
        );

        let function = named(&object, "logged");
        assert!(function.size > 0);
        assert_eq!(
            object.sleds_of(function)[0].kind,
            SledKind::EntryWithArgument,
            "{file}"
        );
        let kinds: Vec<_> = object
            .sleds_of(named(&object, "tail"))
            .iter()
            .map(|sled| sled.kind)
            .collect();
        assert_eq!(kinds, [SledKind::Entry, SledKind::TailExit], "{file}");
        assert!(
            object
                .sleds()
                .iter()
                .any(|sled| sled.kind == SledKind::CustomEvent),
            "{file}"
        );
        assert!(
            !object
                .functions()
                .iter()
                .any(|function| function.name == "never"),
            "{file}"
        );
    }
}

#[test]
fn offsets_lead_to_the_bytes_that_the_compiler_wrote() {
    let bench = Workbench::new();
    bench.write("p.c", C_PROGRAM);
    for (file, arguments) in [
        ("pie", ["-fPIE", "-pie"]),
        ("fixed", ["-fno-pie", "-no-pie"]),
    ] {
        bench.compile(CLANG, "p.c", file, &arguments);
        let bytes = bench.read(file);
        let object = Object::parse(&bytes).unwrap();
        for sled in object.sleds() {
            let offset = usize::try_from(object.address_to_offset(sled.address).unwrap()).unwrap();
            let code = &bytes[offset..offset + 2];
            match sled.kind {
                SledKind::Entry | SledKind::EntryWithArgument | SledKind::TailExit => {
                    assert_eq!(code, [0xeb, 0x09], "{sled:?}");
                }
                SledKind::Exit => assert_eq!(code[0], 0xc3, "{sled:?}"),
                SledKind::CustomEvent => assert_eq!(code, [0xeb, 0x0f], "{sled:?}"),
                SledKind::TypedEvent | SledKind::Unknown(_) => panic!("{sled:?}"),
            }
        }
    }
}

#[test]
fn cxx_and_rust_names_are_demangled() {
    let bench = Workbench::new();
    bench.write("p.cc", CXX_PROGRAM);
    bench.compile(CLANGXX, "p.cc", "cxx", &[]);
    let object = check(&bench, "cxx");
    for name in [
        "ns::A::operator()(int) const",
        "int ns::max<int>(int, int)",
        "double ns::max<double>(double, double)",
        "(anonymous namespace)::quiet(int)",
        "plain",
        "main",
    ] {
        named(&object, name);
    }

    bench.write("p.rs", RUST_PROGRAM);
    bench.compile_rust("p.rs", "rust", &[]);
    let object = check(&bench, "rust");
    assert_eq!(object.index(), FunctionIndex::Distances);
    for name in ["p::leaf", "p::main", "<p::Square as p::Shape>::area"] {
        let function = named(&object, name);
        assert!(
            function.symbol.as_ref().unwrap().starts_with("_ZN")
                || function.symbol.as_ref().unwrap().starts_with("_R")
        );
    }
    let generic = object
        .functions()
        .iter()
        .filter(|f| f.name.starts_with("p::generic"));
    assert_eq!(generic.count(), 2);
}

#[test]
fn a_stripped_file_keeps_its_sleds_and_gets_its_names_from_the_debug_file() {
    let bench = Workbench::new();
    bench.write("p.c", C_PROGRAM);
    bench.compile(CLANG, "p.c", "whole", &["-g"]);
    bench.compile(CLANG, "p.c", "lib.so", &["-g", "-fPIC", "-shared"]);
    for (file, debug, stripped) in [
        ("whole", "whole.debug", "stripped"),
        ("lib.so", "lib.debug", "libstripped.so"),
    ] {
        bench.run(OBJCOPY, &["--only-keep-debug", file, debug]);
        bench.run(STRIP, &["-o", stripped, file]);
        let whole = Object::parse(&bench.read(file)).unwrap();
        let mut object = Object::parse(&bench.read(stripped)).unwrap();
        assert_eq!(object.sleds(), whole.sleds());
        assert_eq!(object.build_id(), whole.build_id());
        assert_eq!(object.runtime(), XrayRuntime::Unknown);
        let exported = object
            .functions()
            .iter()
            .filter(|function| function.symbol.is_some())
            .count();
        let hidden = object
            .functions()
            .iter()
            .find(|function| function.symbol.is_none())
            .unwrap();
        assert_eq!(hidden.name, hidden.address.to_string());
        assert!(hidden.name.starts_with("0x"));

        let debug = bench.read(debug);
        assert_eq!(
            object.add_symbols_from(&debug),
            Ok(whole.functions().len() - exported)
        );
        assert_eq!(object.functions(), whole.functions());
        assert_eq!(object.runtime(), XrayRuntime::Absent);
        assert_eq!(Object::parse(&debug).unwrap_err(), ObjectError::NoMap);
    }
    let mut object = Object::parse(&bench.read("stripped")).unwrap();
    let other = object
        .add_symbols_from(&bench.read("lib.debug"))
        .unwrap_err();
    assert!(matches!(other, ObjectError::OtherBuild { .. }), "{other}");
}

#[test]
fn the_runtime_in_the_process_is_noticed() {
    let bench = Workbench::new();
    bench.write("p.c", &C_PROGRAM.replace("__xray_CustomEvent", "unused"));
    bench.run(
        CLANGXX,
        &[
            "-fxray-instrument",
            "-fxray-instruction-threshold=1",
            "-x",
            "c",
            "p.c",
            "-o",
            "linked",
        ],
    );
    assert_eq!(
        Object::parse(&bench.read("linked")).unwrap().runtime(),
        XrayRuntime::Defined
    );
}

#[test]
fn a_library_knows_the_name_it_is_linked_by() {
    let bench = Workbench::new();
    bench.write("p.c", C_PROGRAM);
    bench.compile(
        CLANG,
        "p.c",
        "lib.so",
        &["-fPIC", "-shared", "-Wl,-soname,libp.so.3"],
    );
    assert_eq!(check(&bench, "lib.so").soname(), Some("libp.so.3"));
}

#[test]
fn a_file_without_sleds_is_distinguished_from_a_file_that_cannot_have_any() {
    let bench = Workbench::new();
    bench.write("p.c", "int main(void) { return 0; }\n");
    bench.run(CLANG, &["p.c", "-o", "plain"]);
    bench.compile(CLANG, "p.c", "p.o", &["-c"]);
    for (file, expected) in [
        ("plain", ObjectError::NoMap),
        ("p.o", ObjectError::Relocatable),
        ("p.c", ObjectError::NotElf),
    ] {
        assert_eq!(Object::parse(&bench.read(file)).unwrap_err(), expected);
    }
}
