//! Files that are out to harm: nothing panics, hangs or fills the memory.

use std::sync::LazyLock;

use proptest::prelude::*;
use xray_trace::FileAddr;
use xray_trace::instr_map::{Object, SourceMap, Warning};

use crate::image::{BASE, Image, entry};
use crate::toolchain::{CLANG, CLANG_14, Workbench};

/// Real files of both index layouts with debug information.
static REAL: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let bench = Workbench::new();
    bench.write(
        "p.c",
        "int leaf(int x) { return x + 1; }\nint main(void) { return leaf(2); }\n",
    );
    bench.compile(CLANG, "p.c", "new", &["-g"]);
    bench.compile(CLANG_14, "p.c", "old", &["-g"]);
    [bench.read("new"), bench.read("old")]
});

/// The most memory this process ever had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads whatever this is; results are used so far that ranges in them are followed.
fn read(bytes: &[u8]) {
    let mut addresses = vec![FileAddr(0), FileAddr(u64::MAX)];
    if let Ok(mut object) = Object::parse(bytes) {
        let sleds: usize = object
            .functions()
            .iter()
            .map(|f| object.sleds_of(f).len())
            .sum();
        assert_eq!(sleds, object.sleds().len());
        assert!(sleds * 32 <= bytes.len());
        for sled in object.sleds() {
            let offset = object.address_to_offset(sled.address);
            assert!(offset.is_none() || !object.segments().is_empty());
        }
        addresses.extend(object.functions().iter().map(|function| function.address));
        let _ = object.add_symbols_from(bytes);
    }
    if let Ok(map) = SourceMap::parse(bytes, addresses.iter().copied()) {
        assert!(map.len() <= addresses.len());
        for place in addresses.iter().filter_map(|address| map.lookup(*address)) {
            assert!(place.file.len() <= 4096);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(tail in prop::collection::vec(any::<u8>(), 0..512)) {
        read(&tail);
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
        file.extend(tail);
        read(&file);
    }

    #[test]
    fn changed_files_are_read_or_refused(
        old in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, any::<u64>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = REAL[usize::from(old)].clone();
        // Half of the changes go where they hurt: into the headers.
        let size = file.len();
        for (place, area, value) in changes {
            let at = match area {
                0 | 1 => place.index(1024),
                2 | 3 => size - 1 - place.index(64 * 40),
                _ => place.index(size),
            };
            let end = (at + 1 + value.to_le_bytes()[0] as usize % 8).min(size);
            let width = end - at;
            file[at..end].copy_from_slice(&value.rotate_left(17).to_le_bytes()[..width]);
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(size));
        }
        read(&file);
        prop_assert!(peak_memory() < 1 << 20, "{} KiB", peak_memory());
    }
}

#[test]
fn a_file_cut_anywhere_is_read_or_refused() {
    for file in REAL.iter() {
        for end in (0..file.len()).step_by(97) {
            read(&file[..end]);
        }
    }
}

#[test]
fn many_functions_that_share_a_long_name_stay_within_bounds() {
    const FUNCTIONS: u64 = 20_000;
    let map: Vec<u8> = (0..FUNCTIONS)
        .flat_map(|number| entry(BASE + number, BASE + number, 0, 0))
        .collect();
    let symbols: Vec<_> = (0..FUNCTIONS).map(|number| (1, BASE + number)).collect();
    let mut strings = vec![0];
    strings.extend([b'a'; 60_000]);
    let file = Image::default()
        .with("xray_instr_map", map)
        .with_symbols(&symbols, strings)
        .build();
    let object = Object::parse(&file).unwrap();
    let names: usize = object
        .functions()
        .iter()
        .map(|function| function.name.len())
        .sum();
    assert!(
        names < 20 * file.len(),
        "{names} bytes of names from {} bytes",
        file.len()
    );
    assert!(
        matches!(object.warnings(), [Warning::NamesLeftOut { .. }]),
        "{:?}",
        object.warnings()
    );
    assert_eq!(
        object.functions().last().unwrap().name,
        format!("{:#x}", BASE + FUNCTIONS - 1)
    );
}

#[test]
fn many_symbols_that_explode_when_demangled_take_bounded_time() {
    const FUNCTIONS: u64 = 5_000;
    let map: Vec<u8> = (0..FUNCTIONS)
        .flat_map(|number| entry(BASE + number, BASE + number, 0, 0))
        .collect();
    let symbols: Vec<_> = (0..FUNCTIONS).map(|number| (1, BASE + number)).collect();
    let pairs = ('0'..='9')
        .chain('A'..='Z')
        .map(|digit| format!("S_IS{digit}_S{digit}_E"));
    let name = pairs.fold("\0_Z1fSt4pairIiiE".to_owned(), |name, pair| name + &pair);
    let file = Image::default()
        .with("xray_instr_map", map)
        .with_symbols(&symbols, name.into_bytes())
        .build();
    let object = Object::parse(&file).unwrap();
    assert!(
        object
            .functions()
            .iter()
            .all(|function| function.name.len() < 1000)
    );
}
