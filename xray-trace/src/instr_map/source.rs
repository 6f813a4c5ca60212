//! Source lines of addresses, from the line tables of DWARF 2 to 5.
//!
//! The tables (`.debug_line`) follow each other. Each is read once, and only the lines of the
//! requested addresses are kept. So a gigabyte of debug information costs time but no memory, and a
//! file crafted to explode does no more.
//!
//! `.debug_info` is not read. It would only give the directory of the compilation, which older
//! tables (DWARF 4) omit: their file names can be relative.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gimli::RunTimeEndian;
use gimli::{
    AttributeValue, ColumnType, DebugLine, DebugLineOffset, EndianSlice, LineProgramHeader, Reader,
};

use super::bytes::ObjectBytes;
use super::elf::{Accept, Elf};
use super::file::ObjectFile;
use super::{FileAddr, ObjectError, Segment};
use crate::model::SourceLine;

/// The longest path that is kept, in bytes.
const LONGEST_PATH: usize = 4096;
/// The longest list of files of one table, in bytes. It is the only part that is decoded as a
/// whole.
const LONGEST_HEADER: u64 = 1 << 20;

/// The source lines of a set of addresses.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<String>,
    lines: BTreeMap<FileAddr, LinePlace>,
}

/// Reasons why a file gives no source lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The file is no readable ELF file.
    #[error("cannot read the debug information")]
    Object(#[from] ObjectError),
    /// The file was compiled without `-g`, or stripped.
    #[error("no line tables (.debug_line)")]
    NoDebugInfo,
    /// The sections are compressed, which is not supported.
    #[error("section {section} is compressed; use objcopy --decompress-debug-sections")]
    Compressed {
        /// The first such section.
        section: &'static str,
    },
}

/// The place of the statement whose code is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The line, from 1; 0 if only the file is known.
    pub line: u32,
    /// The column, from 1; 0 if the whole line is meant.
    pub column: u32,
}

#[derive(Clone, Copy, Debug)]
struct LinePlace {
    /// Index into `SourceMap::files`.
    file: usize,
    line: u32,
    statement: Statement,
}

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The sections that hold line tables and the strings they refer to.
struct Sections<'a> {
    endian: RunTimeEndian,
    lines: &'a [u8],
    line_strings: Slice<'a>,
    strings: Slice<'a>,
}

/// The extent of a line table, read before the table is decoded.
struct LineTableExtent {
    end: usize,
    header_length: u64,
}

/// Finds source lines for addresses, table by table.
struct Search<'a> {
    sections: Sections<'a>,
    code: Vec<Segment>,
    /// Addresses that no table has covered yet.
    open: BTreeSet<FileAddr>,
    map: SourceMap,
    file_numbers: HashMap<String, usize>,
    /// Bytes of paths that may still be stored.
    budget: usize,
}

/// The lines of an address and of the addresses behind it, up to the address of the next row.
#[derive(Clone, Copy)]
struct Row {
    address: u64,
    /// The line of the address itself. Of several rows at one address the first counts: at the
    /// begin of a function it is the line of the function, and the others are lines of its first
    /// statements.
    at: Line,
    /// The line of the addresses behind it. Of several rows at one address the last counts.
    behind: Line,
}

#[derive(Clone, Copy)]
struct Line {
    file: u64,
    number: u32,
    column: u32,
}

// === impl SourceMap ===

impl SourceMap {
    /// Looks up the lines of `addresses` in an ELF file with debug information: the object itself
    /// or its separate debug file. Damaged parts of the tables are skipped.
    ///
    /// # Errors
    ///
    /// If the file as a whole gives no lines; see [`SourceError`].
    pub fn parse<'a>(
        file: impl Into<ObjectBytes<'a>>,
        addresses: impl IntoIterator<Item = FileAddr>,
    ) -> Result<Self, SourceError> {
        let file = file.into();
        let elf = Elf::parse(file, Accept::Loadable)?;
        let sections = Sections::of(&elf)?;
        let mut search = Search {
            sections,
            code: elf
                .identity
                .segments
                .into_iter()
                .filter(|segment| segment.executable)
                .take(16)
                .collect(),
            open: addresses.into_iter().collect(),
            map: Self::default(),
            file_numbers: HashMap::new(),
            budget: file.allowance(4),
        };
        search.run();
        Ok(search.map)
    }

    /// The line of an address that [`SourceMap::parse`] looked up.
    pub fn lookup(&self, address: FileAddr) -> Option<SourceLine> {
        let LinePlace { file, line, .. } = *self.lines.get(&address)?;
        Some(SourceLine {
            file: self.files.get(file)?.clone(),
            line,
        })
    }

    /// The statement at such an address. At the begin of a function it is the first statement of
    /// the function, where [`SourceMap::lookup`] gives the line of the function.
    pub fn statement(&self, address: FileAddr) -> Option<Statement> {
        Some(self.lines.get(&address)?.statement)
    }

    /// The number of addresses with a line.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether none of the addresses has a line.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

// === impl Sections ===

impl<'a> Sections<'a> {
    fn of(elf: &Elf<'a>) -> Result<Self, SourceError> {
        const NAMES: [&str; 3] = [".debug_line", ".debug_line_str", ".debug_str"];
        if let Some(section) = NAMES.into_iter().find(|name| elf.is_compressed(name)) {
            return Err(SourceError::Compressed { section });
        }
        if elf.section(".zdebug_line")?.is_some() {
            return Err(SourceError::Compressed {
                section: ".zdebug_line",
            });
        }
        let endian = if elf.format().little_endian {
            RunTimeEndian::Little
        } else {
            RunTimeEndian::Big
        };
        let data = |name| Ok::<_, ObjectError>(elf.section(name)?.map_or(&[][..], |it| it.data));
        let lines = data(NAMES[0])?;
        if lines.is_empty() {
            return Err(SourceError::NoDebugInfo);
        }
        Ok(Self {
            endian,
            lines,
            line_strings: EndianSlice::new(data(NAMES[1])?, endian),
            strings: EndianSlice::new(data(NAMES[2])?, endian),
        })
    }

    /// The extent of the table at `start`. The length of a table precedes it, in 4 or in 4 + 8
    /// bytes.
    fn extent(&self, start: usize) -> Option<LineTableExtent> {
        let mut rest = EndianSlice::new(self.lines.get(start..)?, self.endian);
        let before = rest.len();
        let (length, format) = rest.read_initial_length().ok()?;
        let end = start
            .checked_add(before - rest.len())?
            .checked_add(length)?;
        let version = rest.read_u16().ok()?;
        if version >= 5 {
            rest.skip(2).ok()?;
        }
        let header_length = rest.read_word(format).ok()? as u64;
        Some(LineTableExtent { end, header_length })
    }

    fn string(&self, value: &AttributeValue<Slice<'a>>) -> Option<Slice<'a>> {
        let (mut strings, offset) = match value {
            AttributeValue::String(text) => return Some(*text),
            AttributeValue::DebugLineStrRef(offset) => (self.line_strings, offset.0),
            AttributeValue::DebugStrRef(offset) => (self.strings, offset.0),
            _ => return None,
        };
        strings.skip(offset).ok()?;
        let strings = EndianSlice::new(
            &strings.slice()[..strings.len().min(LONGEST_PATH)],
            self.endian,
        );
        let end = strings.find(0).unwrap_or(strings.len());
        Some(strings.range_to(..end))
    }

    fn path(&self, header: &LineProgramHeader<Slice<'a>>, number: u64) -> Option<String> {
        let file = header.file(number)?;
        // Tables up to version 4 do not contain their directory 0.
        let directory_index = file.directory_index();
        let mut path = String::new();
        if header.version() >= 5 && directory_index != 0 {
            self.push(&mut path, &header.directory(0)?);
        }
        if let Some(directory) = file.directory(header) {
            self.push(&mut path, &directory);
        }
        self.push(&mut path, &file.path_name());
        (!path.is_empty() && path.len() <= LONGEST_PATH).then_some(path)
    }

    /// Adds a part to a path; an absolute part replaces what is there.
    fn push(&self, path: &mut String, part: &AttributeValue<Slice<'a>>) {
        let Some(part) = self.string(part) else {
            return;
        };
        let part = part.slice();
        let part = String::from_utf8_lossy(&part[..part.len().min(LONGEST_PATH)]);
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(&part);
    }
}

// === impl Search ===

impl<'a> Search<'a> {
    fn run(&mut self) {
        let mut start = 0;
        while !self.open.is_empty()
            && let Some(extent) = self.sections.extent(start)
        {
            if extent.header_length <= LONGEST_HEADER {
                self.read_table(start);
            }
            start = extent.end;
        }
    }

    fn read_table(&mut self, start: usize) {
        let lines = DebugLine::from(EndianSlice::new(self.sections.lines, self.sections.endian));
        let Ok(program) = lines.program(DebugLineOffset(start), 8, None, None) else {
            return;
        };
        let mut rows = program.rows();
        let mut files = HashMap::new();
        let mut last: Option<Row> = None;
        let mut in_code = false;
        while let Ok(Some((header, row))) = rows.next_row() {
            let address = row.address();
            if last.is_none() {
                // The linker sets the begin of tables of dropped functions to 0 or 1.
                in_code = self
                    .code
                    .iter()
                    .any(|segment| segment.contains(FileAddr(address)));
            }
            if let Some(last) = last.filter(|last| in_code && last.address < address) {
                self.cover(last, address, header, &mut files);
            }
            let line = Line {
                file: row.file_index(),
                number: row
                    .line()
                    .map_or(0, |line| u32::try_from(line.get()).unwrap_or(0)),
                column: match row.column() {
                    ColumnType::LeftEdge => 0,
                    ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(0),
                },
            };
            let earlier = last.filter(|last| last.address == address && last.at.number != 0);
            let at = earlier.map_or(line, |earlier| earlier.at);
            last = (!row.end_sequence()).then_some(Row {
                address,
                at,
                behind: line,
            });
        }
    }

    /// Assigns the row's line to the open addresses from the row's address to `end`. The first row
    /// that covers an address closes it, so that overlapping tables cost nothing.
    fn cover(
        &mut self,
        row: Row,
        end: u64,
        header: &LineProgramHeader<Slice<'a>>,
        files: &mut HashMap<u64, Option<usize>>,
    ) {
        while let Some(&address) = self.open.range(FileAddr(row.address)..FileAddr(end)).next() {
            self.open.remove(&address);
            let line = if address.0 == row.address {
                row.at
            } else {
                row.behind
            };
            let file = *files.entry(line.file).or_insert_with(|| {
                number_of(
                    self.sections.path(header, line.file)?,
                    &mut self.map.files,
                    &mut self.file_numbers,
                    &mut self.budget,
                )
            });
            if let Some(file) = file {
                self.map.lines.insert(
                    address,
                    LinePlace {
                        file,
                        line: line.number,
                        statement: Statement {
                            line: row.behind.number,
                            column: row.behind.column,
                        },
                    },
                );
            }
        }
    }
}

fn number_of(
    path: String,
    files: &mut Vec<String>,
    numbers: &mut HashMap<String, usize>,
    budget: &mut usize,
) -> Option<usize> {
    if let Some(&number) = numbers.get(&path) {
        return Some(number);
    }
    *budget = budget.checked_sub(2 * path.len())?;
    files.push(path.clone());
    numbers.insert(path, files.len() - 1);
    Some(files.len() - 1)
}
