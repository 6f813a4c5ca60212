//! Hostile files: the readers do not panic, hang or fill the memory.

use std::sync::LazyLock;

use proptest::prelude::*;
use xray_trace::FileAddr;
use xray_trace::instr_map::{InstrMap, Object, ObjectBytes, ObjectError, SourceMap, Warning};

use crate::image::{BASE, Image, entry};
use crate::toolchain::{CLANG, CLANG_14, LD64, Workbench};

/// Real files of both index layouts with debug information, and files still to be linked: of 64 and
/// 32 bits, and of both byte orders. Also Mach-O files, linked with chains of pointers and still to
/// be linked.
static REAL: LazyLock<[Vec<u8>; 7]> = LazyLock::new(|| {
    let bench = Workbench::new();
    bench.write(
        "p.c",
        "int leaf(int x) { return x + 1; }\nint main(void) { return leaf(2); }\n",
    );
    bench.compile(CLANG, "p.c", "new", &["-g"]);
    bench.compile(CLANG_14, "p.c", "old", &["-g"]);
    for (target, out) in [
        ("x86_64-linux-gnu", "wide.o"),
        ("mips-linux-gnu", "big.o"),
        ("armv7-linux-gnueabihf", "arm.o"),
    ] {
        let target = format!("--target={target}");
        let arguments = [&target, "-c", "-ffunction-sections"];
        bench.compile(CLANG, "p.c", out, &arguments);
    }
    let target = "--target=arm64-apple-macos13";
    bench.compile(CLANG, "p.c", "mach.o", &[target, "-c"]);
    bench.write("q.s", ".globl _f\n_f: .long 0\n.section __DATA,xray_instr_map\n.quad _f, _f\n.byte 0, 0, 1\n.zero 13\n");
    bench.run(CLANG, &[target, "-c", "q.s", "-o", "q.o"]);
    let arguments = "-arch arm64 -platform_version macos 13 13 -dylib -fixup_chains q.o -o q.dylib";
    bench.run(LD64, &arguments.split(' ').collect::<Vec<_>>());
    [
        "new", "old", "wide.o", "big.o", "arm.o", "mach.o", "q.dylib",
    ]
    .map(|file| bench.read(file))
});

/// The peak memory of this process, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads any bytes, and uses the results as far as needed to follow all ranges in them.
fn read(bytes: &[u8]) {
    let mut addresses = vec![FileAddr(0), FileAddr(u64::MAX)];
    assert!(InstrMap::read(bytes).is_ok() || Object::parse(bytes).is_err());
    if let Ok(mut object) = Object::parse_any(bytes) {
        let sleds: usize = object
            .functions()
            .iter()
            .map(|f| object.sleds_of(f).len())
            .sum();
        assert_eq!(sleds, object.sleds().len());
        assert!(sleds * 16 <= bytes.len());
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
        for (class, order) in [(2, 1), (1, 1), (1, 2), (2, 2)] {
            let mut file = vec![0x7f, b'E', b'L', b'F', class, order, 1];
            file.resize(16, 0);
            file.extend(if order == 1 { [2, 0] } else { [0, 1] });
            file.extend(&tail);
            read(&file);
        }
        let mut file = vec![0xcf, 0xfa, 0xed, 0xfe, 7, 0, 0, 1];
        file.extend(&tail);
        read(&file);
    }

    #[test]
    fn changed_files_are_read_or_refused(
        which in 0..REAL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, any::<u64>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = REAL[which].clone();
        // Half of the changes go into the headers, where they do the most harm.
        let size = file.len();
        for (place, area, value) in changes {
            let at = match area {
                0 | 1 => place.index(size.min(1024)),
                2 | 3 => size - 1 - place.index(size.min(64 * 40)),
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

/// A real file's sections do not overlap. Here each of 20,000 sections is the whole file, so
/// reading all would take the file's size each time.
#[test]
fn sections_that_share_their_bytes_are_refused() {
    const SECTIONS: u16 = 20_000;
    let map = entry(0, 0, 0, 2).repeat(4096);
    let mut file = Image::default().with("xray_instr_map", map).build();
    let headers = usize::try_from(u64::from_le_bytes(*file[40..].first_chunk().unwrap())).unwrap();
    // The map's header is repeated, in a file that is still to be linked.
    file[16] = 1;
    let header = file[headers + 64..headers + 128].to_vec();
    let names = file[headers + 128..headers + 192].to_vec();
    file.truncate(headers + 64);
    file.extend(header.repeat(usize::from(SECTIONS)));
    file.extend(names);
    file[60..62].copy_from_slice(&(SECTIONS + 2).to_le_bytes());
    file[62..64].copy_from_slice(&(SECTIONS + 1).to_le_bytes());
    assert_eq!(Object::parse_any(&file).unwrap_err(), ObjectError::Overlap);
}

/// A file with this number of functions. All have one long name but the last, whose name is `b`.
fn with_one_long_name_and_a_short_one(functions: u64) -> Vec<u8> {
    let (short, mut strings) = (60_002, vec![0]);
    strings.extend([b'a'; 60_000]);
    strings.extend(*b"\0b\0");
    with_names(functions, strings, |number| match number + 1 == functions {
        true => short,
        false => 1,
    })
}

/// A file with this number of functions, all with one long name.
fn with_one_long_name(functions: u64) -> Vec<u8> {
    let mut strings = vec![0];
    strings.extend([b'a'; 60_000]);
    with_names(functions, strings, |_| 1)
}

/// A file with this number of functions; `name` returns the offset of each one's name in `strings`.
fn with_names(functions: u64, strings: Vec<u8>, name: impl Fn(u64) -> u32) -> Vec<u8> {
    let map: Vec<u8> = (0..functions)
        .flat_map(|number| entry(BASE + number, BASE + number, 0, 0))
        .collect();
    let symbols: Vec<_> = (0..functions)
        .map(|number| (name(number), BASE + number))
        .collect();
    Image::default()
        .with("xray_instr_map", map)
        .with_symbols(&symbols, strings)
        .build()
}

/// A file whose length exceeds its content costs no more.
#[test]
fn names_are_bounded_by_the_bytes_that_are_there() {
    let mut file = with_one_long_name(5_000);
    let present = file.len();
    let before = Object::parse(&file).unwrap().memory();
    file.resize(1 << 30, 0);
    let object = Object::parse(ObjectBytes::with_holes(&file, present)).unwrap();
    assert_eq!(object.memory(), before);
    assert!(before < 16 * present, "{before} bytes for {present}");
    assert!(
        matches!(object.warnings(), [Warning::NamesLeftOut { .. }]),
        "{:?}",
        object.warnings()
    );
}

/// 256 MiB of zeros would be eight million sleds at address 0.
#[test]
fn a_map_that_is_a_hole_has_no_sleds() {
    const SIZE: usize = 256 << 20;
    let one = entry(BASE, BASE, 0, 0).to_vec();
    let mut file = Image::default().with("xray_instr_map", one).build();
    let start = u64::from_le_bytes(*file[40..].first_chunk().unwrap());
    let header = usize::try_from(start).unwrap() + 64;
    let mut hole = |size: usize, text: usize| {
        let at = file.len();
        file[header + 24..header + 32].copy_from_slice(&(at as u64).to_le_bytes());
        file[header + 32..header + 40].copy_from_slice(&(size as u64).to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&(text as u64).to_le_bytes());
        let mut file = file.clone();
        file.resize(at + size, 0);
        Object::parse(&file).unwrap_err()
    };
    assert_eq!(
        hole(SIZE, 1 << 20),
        ObjectError::TooManySleds {
            sleds: SIZE / 32,
            text: 1 << 20
        }
    );
    // The code that would be necessary, which is a hole as well.
    let empty = |entry| ObjectError::EmptyEntry { entry };
    assert_eq!(hole(SIZE, SIZE), empty(0));
}

#[test]
fn many_functions_that_share_a_long_name_stay_within_bounds() {
    const FUNCTIONS: u64 = 20_000;
    let file = with_one_long_name(FUNCTIONS);
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

/// Reading a name takes time even if there is no room for it: a million symbols of 64 KiB each
/// would take half a minute.
#[test]
fn names_without_room_are_paid_for() {
    const FUNCTIONS: u64 = 1_000;
    let name_of_last = |functions| {
        let file = with_one_long_name_and_a_short_one(functions);
        let object = Object::parse(&file).unwrap();
        object.functions().last().unwrap().name.clone()
    };
    assert_eq!(name_of_last(2), "b");
    let address = format!("{:#x}", BASE + FUNCTIONS - 1);
    assert_eq!(name_of_last(FUNCTIONS), address);
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

/// The number of section headers stands in the first one if there are many. In a file with holes,
/// all of them may lie in a hole.
#[test]
fn section_headers_in_a_hole_take_no_memory() {
    const COUNT: usize = 1 << 20;
    let mut file = vec![0; 64 + 64 * COUNT];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // ET_DYN, x86-64, version 1; the section headers and their size.
    file[16..20].copy_from_slice(&[3, 0, 62, 0]);
    file[20] = 1;
    file[40] = 64;
    file[52] = 64;
    file[58] = 64;
    file[64 + 32..64 + 40].copy_from_slice(&(COUNT as u64).to_le_bytes());
    let error = Object::parse(ObjectBytes::with_holes(&file, 128)).unwrap_err();
    assert!(error.to_string().contains("section headers"), "{error}");
    // The same number of headers that are there.
    let error = Object::parse(&file).unwrap_err();
    assert!(!error.to_string().contains("section headers"), "{error}");
}
