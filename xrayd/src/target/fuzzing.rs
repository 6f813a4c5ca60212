//! Entry points for the fuzz targets in `fuzz/`: the daemon's reading of a target's files and
//! memory. Compiled only with `--cfg fuzzing`.

use std::{cell::RefCell, collections::HashSet, fs::File, io};

use xray_trace::{
    FileAddr,
    instr_map::{Object, SourceMap},
};

use super::{
    Maps,
    event_types::{self, Source},
    image::{Image, Parts},
    linked::names_of,
    loads_of,
};

/// Reads a mapped file in every way that the daemon does.
///
/// # Panics
/// The parsed file takes more memory than the bytes that were read account for.
pub fn read_file(file: &File) {
    let _ = names_of(file);
    let mut functions = vec![FileAddr(0)];
    if let Ok(image) = Image::read(file, Parts::Map, 0)
        && let Ok(object) = Object::parse(image.bytes())
    {
        let read = image.bytes().present();
        assert!(object.sleds().len() * 16 <= read);
        assert!(object.memory() <= 16 * read + (2 << 20));
        functions.extend(object.functions().iter().map(|function| function.address));
    }
    if let Ok(image) = Image::read(file, Parts::Lines, 0) {
        let _ = SourceMap::parse(image.bytes(), functions);
    }
}

/// Reads maps of a process.
pub fn read_maps(lines: &[u8]) {
    let maps = Maps::parse(lines);
    let _ = loads_of(&maps);
    for entry in maps.iter().take(16) {
        let _ = maps.at(entry.range.start);
        let _ = maps.gap_near(&entry.range, 1 << 31, 1 << 16, 8 << 20);
    }
}

/// Looks for names of event types in memory that returns these bytes, read after read.
pub fn read_type_names(answers: &[u8]) {
    let memory = Answers(RefCell::new(answers));
    let known = HashSet::from([0, 1]);
    let _ = event_types::of_llvm(&memory, 0x1000, 0x2000, &known);
    let _ = event_types::of_section(&memory, 0x3000, u64::MAX, &known);
}

struct Answers<'a>(RefCell<&'a [u8]>);

// === impl Answers ===

impl Source for Answers<'_> {
    /// As much of the input as is wanted, and zeros after it. Nothing is mapped at the input's end,
    /// and where the first byte is 0xff.
    fn read(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
        let mut left = self.0.borrow_mut();
        let (&shape, rest) = left.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
        if shape == 0xff {
            *left = rest;
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The first byte limits the length of the answer, so that one read does not take the whole
        // input.
        let length = into.len().min(rest.len()).min(usize::from(shape) * 8);
        let (answer, rest) = rest.split_at(length);
        into.fill(0);
        into[..length].copy_from_slice(answer);
        *left = rest;
        Ok(())
    }
}
