//! Reads the names that a program has given to the types of its typed events, out of its memory.
//! Nothing is changed, and nothing that is found is used before it is proven.
//!
//! LLVM's runtime keeps a hash table from the addresses of names to numbers (`AddrHashMap` of
//! sanitizer_common). The table is the same from LLVM 7 to 21, except for the size of the mutex: 8
//! bytes up to LLVM 12, and 16 since:
//!
//! ```text
//!  TypeDescriptorAddressMap: u64 ──► 11 buckets: mutex, u64 ──► cap, size, cells…
//!  counter beside it: u32                        3 cells
//!  a cell: u64 address of the name (0: free), u32 number, u32 –,
//!          u64 length of the name, at most 1024
//! ```
//!
//! Memory counts as such a table under three conditions. Every cell in use stands in the bucket
//! that its address belongs to. Each number occurs once and is below the counter. A name is as long
//! as its cell specifies. Without a runtime there is a section of our own
//! (`integration/without-runtime/xray_events.c`):
//!
//! ```text
//!  "xraytyp" 01, u64 capacity, u64 address of each name, 0 behind the last
//! ```

use std::{collections::HashSet, io};

use xray_trace::FileAddr;

use super::Module;
use crate::{pid::TargetAddr, sys::Memory};

/// Most names of one process, and most bytes of one name. LLVM's runtime counts no more.
pub(crate) const MOST_TYPE_NAMES: usize = 4096;
const LONGEST: usize = 1024;

/// Separator of the names, if several libraries name one number differently.
pub(crate) const BETWEEN_NAMES: &str = " | ";

const BUCKETS: usize = 11;
const CELLS: usize = 3;
const CELL: usize = 24;
/// Sizes of a bucket's mutex, in all versions.
const MUTEXES: [usize; 2] = [16, 8];
/// Tries: a table that is just growing looks invalid.
const ATTEMPTS: usize = 3;

const MAGIC: [u8; 8] = *b"xraytyp\x01";
const HEAD: usize = 16;
const PAGE: u64 = 4096;

/// A name in the table of LLVM's runtime.
#[derive(Debug, Clone, Copy)]
struct Cell {
    address: u64,
    number: u32,
    length: u64,
}

/// Memory that names are read from.
pub(super) trait Source {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()>;
}

/// True if `name` is one of the names in `called`, which are those of one number.
pub(crate) fn has_type_name(called: &str, name: &str) -> bool {
    // A name may contain what stands between names.
    let apart = |names: &str| [BETWEEN_NAMES, names, BETWEEN_NAMES].concat();
    apart(called).contains(&apart(name))
}

/// True if a module has a table of names.
pub(crate) fn has_type_names(module: &Module) -> bool {
    let tables = module.object.event_types();
    tables.llvm.is_some() || tables.plain.is_some()
}

/// The names that are registered in a module and not `known` yet. Unreadable and invalid names are
/// left out: they may be there the next time.
pub(crate) fn new_type_names(
    memory: &Memory,
    module: &Module,
    known: &HashSet<u16>,
) -> Vec<(u16, String)> {
    let tables = module.object.event_types();
    let at = |address: FileAddr| module.in_target(address).0;
    let mut names = Vec::new();
    if let Some((table, counter)) = tables.llvm {
        names.extend(of_llvm(memory, at(table), at(counter), known));
    }
    if let Some((section, length)) = tables.plain {
        names.extend(of_section(memory, at(section), length, known));
    }
    names.retain(|(_, name)| !name.is_empty());
    names
}

pub(super) fn of_llvm(
    source: &impl Source,
    table: u64,
    counter: u64,
    known: &HashSet<u16>,
) -> Vec<(u16, String)> {
    for mutex in [MUTEXES; ATTEMPTS].concat() {
        if let Some(cells) = cells(source, table, counter, mutex)
            && let Some(names) = proven_names(source, &cells, known)
        {
            return names;
        }
    }
    Vec::new()
}

/// The cells in use, if all of them are valid.
fn cells(source: &impl Source, table: u64, counter: u64, mutex: usize) -> Option<Vec<Cell>> {
    let start = word(source, table).filter(|&start| start != 0)?;
    let bucket_size = mutex + 8 + CELLS * CELL;
    let mut buckets = vec![0; BUCKETS * bucket_size];
    source.read(start, &mut buckets).ok()?;
    let mut cells = Vec::new();
    for (index, bucket) in (0..).zip(buckets.chunks_exact(bucket_size)) {
        let (head, own) = bucket.split_at_checked(mutex + 8)?;
        let added = word_of(head.get(mutex..)?);
        let mut take = |bytes: &[u8]| take_cells(bytes, index, &mut cells);
        take(own)?;
        if added != 0 {
            take(&added_cells(source, added)?)?;
        }
    }
    // The counter is read last: the runtime counts a number before its cell is in use.
    let mut count = [0; 4];
    source.read(counter, &mut count).ok()?;
    let count = u32::from_le_bytes(count);
    let mut numbers = HashSet::new();
    let sound = |cell: &Cell| cell.number < count && numbers.insert(cell.number);
    cells.iter().all(sound).then_some(cells)
}

/// Further cells, for which a bucket has no room.
fn added_cells(source: &impl Source, address: u64) -> Option<Vec<u8>> {
    let mut head = [0; 16];
    source.read(address, &mut head).ok()?;
    let (capacity, size) = (word_of(&head), word_of(&head[8..]));
    if size > capacity || capacity > MOST_TYPE_NAMES as u64 * 2 {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(size).ok()? * CELL];
    source.read(address.checked_add(16)?, &mut bytes).ok()?;
    Some(bytes)
}

/// Takes the cells in use from the cells of a bucket. `None` if one cannot belong there.
fn take_cells(bytes: &[u8], bucket: u64, cells: &mut Vec<Cell>) -> Option<()> {
    for cell in bytes.chunks_exact(CELL) {
        let cell = Cell {
            address: word_of(cell),
            number: u32::from_le_bytes(*cell.get(8..)?.first_chunk()?),
            length: word_of(cell.get(16..)?),
        };
        if cell.address == 0 {
            continue;
        }
        if bucket_of(cell.address) != bucket || cell.length > LONGEST as u64 {
            return None;
        }
        if cells.len() < MOST_TYPE_NAMES {
            cells.push(cell);
        }
    }
    Some(())
}

/// The bucket that an address belongs to: `AddrHashMap::calcHash`.
fn bucket_of(address: u64) -> u64 {
    let hash = address.wrapping_add(address << 10);
    (hash ^ (hash >> 6)) % BUCKETS as u64
}

/// The names of cells that are not known yet. `None` if no name is as long as its cell specifies. A
/// table without cells proves nothing either: another layout may show some.
fn proven_names(
    source: &impl Source,
    cells: &[Cell],
    known: &HashSet<u16>,
) -> Option<Vec<(u16, String)>> {
    let mut names = Vec::new();
    let mut proven = false;
    for cell in cells {
        // The program uses the low 16 bits, which a later type may get again.
        let Ok(number) = u16::try_from(cell.number) else {
            continue;
        };
        if proven && known.contains(&number) {
            continue;
        }
        let name = text_at(source, cell.address);
        let name = name.filter(|name| name.len() as u64 == cell.length);
        if let Some(name) = name {
            proven = true;
            if !known.contains(&number) {
                names.push((number, readable(&name)));
            }
        }
    }
    proven.then_some(names)
}

pub(super) fn of_section(
    source: &impl Source,
    section: u64,
    length: u64,
    known: &HashSet<u16>,
) -> Vec<(u16, String)> {
    let most = (HEAD + MOST_TYPE_NAMES * 8) as u64;
    let Ok(length) = usize::try_from(length.min(most)) else {
        return Vec::new();
    };
    let mut bytes = vec![0; length];
    if source.read(section, &mut bytes).is_err() || !bytes.starts_with(&MAGIC) {
        return Vec::new();
    }
    let capacity = bytes.get(8..).map_or(0, word_of);
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let names = bytes.get(HEAD..).unwrap_or_default().chunks_exact(8);
    let names = names.take(capacity).map(word_of);
    let names = (0..).zip(names.take_while(|&name| name != 0));
    let unknown = names.filter(|(number, _)| !known.contains(number));
    unknown
        .filter_map(|(number, name)| Some((number, readable(&text_at(source, name)?))))
        .collect()
}

/// The bytes up to a zero, at most [`LONGEST`]. Reads no page that is not needed.
fn text_at(source: &impl Source, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let from = address.checked_add(text.len() as u64)?;
        let page = usize::try_from(PAGE - from % PAGE).ok()?;
        let mut part = vec![0; page.min(LONGEST - text.len())];
        source.read(from, &mut part).ok()?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(part.get(..end)?);
            break;
        }
        text.append(&mut part);
    }
    Some(text)
}

/// The text of a name. Bytes that are not UTF-8 are escaped.
fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

fn word(source: &impl Source, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    source.read(address, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The first eight bytes, little-endian.
fn word_of(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

// === impl Memory ===

impl Source for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        Self::read(self, TargetAddr(address), into)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TABLE: u64 = 0x1000;
    const COUNTER: u64 = 0x1008;
    const START: u64 = 0x10_0000;
    const ADDED: u64 = 0x20_0000;
    const NAMES: u64 = 0x30_0000;

    /// Memory in pieces, with nothing between them.
    #[derive(Debug, Default, Clone)]
    struct Pieces(BTreeMap<u64, Vec<u8>>);

    impl Source for Pieces {
        fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
            let piece = self.0.range(..=address).next_back();
            let bytes = piece.and_then(|(start, bytes)| {
                let from = usize::try_from(address - start).ok()?;
                bytes.get(from..from.checked_add(into.len())?)
            });
            into.copy_from_slice(bytes.ok_or(io::ErrorKind::AddrNotAvailable)?);
            Ok(())
        }
    }

    impl Pieces {
        fn words(&mut self, address: u64, words: &[u64]) {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            self.0.insert(address, bytes.collect());
        }
    }

    /// The table that a runtime with such mutexes makes of these names, which lie `stride` bytes
    /// apart.
    fn registered(names: &[&[u8]], mutex: usize, stride: u64) -> Pieces {
        let mut buckets = vec![Vec::new(); BUCKETS];
        let mut memory = Pieces::default();
        let mut texts = vec![0; 4096 + names.len() * usize::try_from(stride).unwrap()];
        for (number, name) in (0..).zip(names) {
            let offset = number * stride;
            let at = usize::try_from(offset).unwrap();
            texts[at..at + name.len()].copy_from_slice(name);
            let address = NAMES + offset;
            let cell = [address, number, name.len().min(LONGEST) as u64];
            buckets[usize::try_from(bucket_of(address)).unwrap()].push(cell);
        }
        memory.0.insert(NAMES, texts);
        let mut words = Vec::new();
        for (index, cells) in (0..).zip(&buckets) {
            words.extend(vec![0; mutex / 8]);
            let (own, more) = cells.split_at(cells.len().min(CELLS));
            let added = ADDED + index * 0x1_0000;
            words.push(if more.is_empty() { 0 } else { added });
            let free = [[0; 3]; CELLS];
            words.extend(own.iter().chain(&free).take(CELLS).flatten());
            if !more.is_empty() {
                let count = more.len() as u64;
                let head = [count.next_power_of_two().max(2), count];
                let all: Vec<u64> = head
                    .into_iter()
                    .chain(more.iter().flatten().copied())
                    .collect();
                memory.words(added, &all);
            }
        }
        // As much as is mapped.
        words.resize(512, 0);
        memory.words(START, &words);
        memory.words(TABLE, &[START, names.len() as u64]);
        memory
    }

    fn found(memory: &Pieces) -> Vec<(u16, String)> {
        let mut names = of_llvm(memory, TABLE, COUNTER, &HashSet::new());
        names.sort();
        names
    }

    #[test]
    fn names_of_every_runtime_are_read() {
        let many: Vec<String> = (0..300).map(|number| format!("type {number}")).collect();
        let many: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
        for mutex in MUTEXES {
            for names in [&many[..0], &many[..1], &many[..7], &many] {
                let memory = registered(names, mutex, 24);
                let expected = (0..).zip(names);
                let expected = expected.map(|(number, name)| (number, readable(name)));
                assert_eq!(
                    found(&memory),
                    expected.collect::<Vec<_>>(),
                    "mutex of {mutex}"
                );
            }
        }
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let memory = registered(&[b"a", b"b", b"c"], 16, 24);
        let names = of_llvm(&memory, TABLE, COUNTER, &HashSet::from([0, 2]));
        assert_eq!(names, [(1, "b".to_owned())]);
    }

    #[test]
    fn names_are_any_bytes_of_any_length() {
        let (longest, longer) = ([b'x'; LONGEST], [b'y'; LONGEST + 9]);
        let names: [&[u8]; 4] = [b"\xff\n", &longest, &longer, "é".as_bytes()];
        let expected = [
            "\\xff\\n".to_owned(),
            "x".repeat(LONGEST),
            "y".repeat(LONGEST),
            "é".to_owned(),
        ];
        let found = found(&registered(&names, 16, 2048)).into_iter();
        assert_eq!(found.map(|(_, name)| name).collect::<Vec<_>>(), expected);
    }

    /// A name that was overwritten after its registration is gone. The others remain.
    #[test]
    fn a_name_of_another_length_is_none() {
        let mut memory = registered(&[b"first", b"second"], 16, 24);
        memory.0.get_mut(&NAMES).unwrap()[0..6].copy_from_slice(b"longer");
        assert_eq!(found(&memory), [(1, "second".to_owned())]);
        memory.0.remove(&NAMES);
        assert_eq!(found(&memory), []);
    }

    #[test]
    fn tables_that_make_no_sense_have_no_names() {
        let names: [&[u8]; 9] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i"];
        let sound = registered(&names, 16, 11 * 64);
        assert_eq!(found(&sound).len(), names.len());
        let broken = |change: &dyn Fn(&mut Pieces)| {
            let mut memory = sound.clone();
            change(&mut memory);
            assert_eq!(found(&memory), []);
        };
        // The counter is smaller than the number of cells.
        broken(&|memory| memory.words(TABLE, &[START, 8]));
        broken(&|memory| memory.words(TABLE, &[0, 9]));
        broken(&|memory| memory.words(TABLE, &[u64::MAX - 7, 9]));
        broken(&|memory| drop(memory.0.remove(&START)));
        for size in [u64::MAX, 1 << 40] {
            broken(&|memory| {
                let start = memory.0.get_mut(&START).unwrap();
                start[16..24].copy_from_slice(&ADDED.to_le_bytes());
                memory.words(ADDED, &[size, size, 0, 0, 0]);
            });
        }
        // Changes every byte of the table in turn. The reader may find anything, but it returns.
        for at in 0..BUCKETS * (MUTEXES[0] + 8 + CELLS * CELL) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut memory = sound.clone();
                memory.0.get_mut(&START).unwrap()[at] = value;
                assert!(found(&memory).len() <= names.len());
            }
        }
        for fill in [0xff, 0x7f, 0x11, 0x30] {
            broken(&|memory| memory.0.get_mut(&START).unwrap().fill(fill));
        }
    }

    fn section(words: &[u64]) -> Pieces {
        let mut memory = Pieces::default();
        memory.words(TABLE, &[&[u64::from_le_bytes(MAGIC)], words].concat());
        let mut texts = b"a\0\xfe\0".to_vec();
        texts.resize(4096, 0);
        memory.0.insert(NAMES, texts);
        // The end of all mapped memory.
        memory.0.insert(ADDED + PAGE - 3, b"end".to_vec());
        memory
    }

    #[test]
    fn a_section_has_names_up_to_the_first_free_place() {
        let read = |memory: &Pieces, length| of_section(memory, TABLE, length, &HashSet::new());
        let name = |number, name: &str| (number, name.to_owned());
        let memory = section(&[4, NAMES, 7, NAMES + 2, 0, NAMES]);
        assert_eq!(read(&memory, 56), [name(0, "a"), name(2, "\\xfe")]);
        // Names end with the section, and with the capacity that it states.
        assert_eq!(read(&memory, 24), [name(0, "a")]);
        assert_eq!(read(&section(&[1, NAMES, NAMES]), 32), [name(0, "a")]);
        assert_eq!(read(&section(&[9, ADDED + PAGE - 3]), 24), []);
        for length in [0, 8, 15, 16, u64::MAX] {
            assert_eq!(read(&memory, length), [], "{length}");
        }
        let mut other = memory;
        other.0.get_mut(&TABLE).unwrap()[7] = 2;
        assert_eq!(read(&other, 56), []);
    }
}
