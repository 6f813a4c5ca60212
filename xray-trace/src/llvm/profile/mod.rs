//! The files of LLVM's profiling mode: the number of calls of each call path of each thread, and
//! the self time of the path's last function.
//!
//! ```text
//! file header, 32 bytes              u64 0x7872617970726f66, u64 version 0x20180424,
//!                                    u64 time stamp, u64 process id
//! then for each thread a block
//!  0  u32  bytes of the block, these 16 included
//!  4  u32  number of the block
//!  8  u64  thread id
//! 16  i32… function ids, from the last called to the first; 0 ends them
//!     u64  calls
//!     u64  ticks in the last called function itself
//!     … further paths
//! ```
//!
//! LLVM's own loader (`llvm/lib/XRay/Profile.cpp`) expects no file header, reads one path from each
//! block, and ignores the length of the block. So in a file without a header a length that is
//! shorter than the first path is no error: the block has that one path.

use std::io::{self, Read, Write};

use self::file_header::FILE_HEADER_LEN;
use crate::llvm::window::Window;
use crate::llvm::{ByteOrder, Error, Format, Mode, PREFIX_LEN, SkippedList};

mod file_header;
mod merged;

pub use file_header::{FileHeader, MAGIC, VERSION, write_file_header};
pub use merged::{Measured, PathId, Profile};

/// The most functions that a path may have. The runtime's paths fit into its 2 MiB of stacks.
pub const MAX_PATH_LEN: usize = 1 << 20;

const BLOCK_HEADER_LEN: usize = 16;
/// The bytes behind the functions: the 0 that ends them, calls and ticks.
const DATA_LEN: usize = 16;
const ID_LEN: usize = 4;

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Its number, from 0.
    pub number: u32,
    /// Its thread.
    pub thread: u64,
}

/// A path of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path<'a> {
    /// Its offset in the file.
    pub offset: u64,
    /// Its block.
    pub block: BlockHeader,
    /// Function ids, from the last called to the first.
    pub functions: &'a [i32],
    /// The number of calls.
    pub calls: u64,
    /// The self time of the last called function, in ticks.
    pub ticks: u64,
}

/// Reads the paths of a profile.
#[derive(Debug)]
pub struct Reader<R> {
    window: Window<R>,
    order: ByteOrder,
    header: Option<FileHeader>,
    mode: Mode,
    block: BlockHeader,
    /// The begin and the end of the current block; both 0 before the first one.
    start: u64,
    end: u64,
    /// The functions of the last path. The next path clears them.
    functions: Vec<i32>,
    skipped: SkippedList,
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Reads the header of a profile, if it has one.
    ///
    /// # Errors
    ///
    /// If the input is no profile, or a profile of an unknown version.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        let mut window = Window::new(input, 0);
        let ahead = window.ahead(PREFIX_LEN)?;
        let start = &ahead[..ahead.len().min(PREFIX_LEN)];
        let (order, header) = match Format::detect(start) {
            Format::Empty => return Err(Error::Empty),
            Format::ProfileBlocks(order) => (order, None),
            Format::Profile(_) if start.len() < FILE_HEADER_LEN => {
                return Err(Error::ShortHeader {
                    has: start.len(),
                    needs: FILE_HEADER_LEN,
                });
            }
            Format::Profile(order) => {
                let version = order.u64(start, 8);
                if version != VERSION {
                    return Err(Error::Version {
                        log: "profile",
                        version,
                        newest: VERSION,
                    });
                }
                let header = FileHeader {
                    timestamp: order.u64(start, 16),
                    pid: order.u64(start, 24),
                };
                (order, Some(header))
            }
            _ => {
                return Err(Error::other("profile", start));
            }
        };
        if header.is_some() {
            window.take(FILE_HEADER_LEN);
        }
        Ok(Self {
            window,
            order,
            header,
            mode,
            block: BlockHeader {
                number: 0,
                thread: 0,
            },
            start: 0,
            end: 0,
            functions: Vec::new(),
            skipped: SkippedList::default(),
        })
    }

    /// The header of the file. Files for LLVM's loader have none.
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_ref()
    }

    /// The parts that were skipped so far; always empty in [`Mode::Strict`].
    pub fn skipped(&self) -> &SkippedList {
        &self.skipped
    }

    /// The next path; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// In [`Mode::Strict`] the first damage, after which the paths have no meaning; and the errors
    /// of the input.
    #[expect(
        clippy::should_implement_trait,
        reason = "a path borrows from the reader, which Iterator cannot say"
    )]
    pub fn next(&mut self) -> Result<Option<Path<'_>>, Error> {
        loop {
            let from = self.window.offset();
            match self.step() {
                Ok(None) => return Ok(None),
                Ok(Some((offset, calls, ticks))) => {
                    return Ok(Some(Path {
                        offset,
                        block: self.block,
                        functions: &self.functions,
                        calls,
                        ticks,
                    }));
                }
                Err(why) if self.mode == Mode::Salvage && why.is_damage() => {
                    // The block's length gives the place of the next one. If the length is wrong,
                    // that place is unknown.
                    let left = self.end.saturating_sub(self.window.offset());
                    self.window.skip(if left == 0 { u64::MAX } else { left })?;
                    self.skipped.push(from, self.window.offset(), why);
                    self.end = 0;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn step(&mut self) -> Result<Option<(u64, u64, u64)>, Error> {
        if self.window.offset() >= self.end && !self.enter_block()? {
            return Ok(None);
        }
        let offset = self.window.offset();
        self.read_functions(offset)?;
        let ids = (self.functions.len() + 1) * ID_LEN;
        let path_end = offset.saturating_add((ids + DATA_LEN) as u64);
        if path_end > self.end {
            let first = offset == self.start.saturating_add(BLOCK_HEADER_LEN as u64);
            if self.header.is_some() || !first {
                return Err(Error::PathBeyondBlock {
                    offset: self.start,
                    path_end,
                    block_end: self.end,
                });
            }
            self.end = path_end;
        }
        let bytes = self.window.ahead(ids + DATA_LEN)?;
        if bytes.len() < ids + DATA_LEN {
            return Err(Error::Truncated {
                record: "path",
                offset,
                needs: (ids + DATA_LEN) as u64,
                has: bytes.len() as u64,
            });
        }
        let (calls, ticks) = (self.order.u64(bytes, ids), self.order.u64(bytes, ids + 8));
        self.window.take(ids + DATA_LEN);
        Ok(Some((offset, calls, ticks)))
    }

    fn enter_block(&mut self) -> Result<bool, Error> {
        let offset = self.window.offset();
        let bytes = self.window.ahead(BLOCK_HEADER_LEN)?;
        if bytes.is_empty() {
            return Ok(false);
        }
        if bytes.len() < BLOCK_HEADER_LEN {
            return Err(Error::Truncated {
                record: "block header",
                offset,
                needs: BLOCK_HEADER_LEN as u64,
                has: bytes.len() as u64,
            });
        }
        let len = self.order.u32(bytes, 0);
        self.block = BlockHeader {
            number: self.order.u32(bytes, 4),
            thread: self.order.u64(bytes, 8),
        };
        self.start = offset;
        self.end = offset.saturating_add(len.into());
        self.window.take(BLOCK_HEADER_LEN);
        Ok(true)
    }

    /// Reads the functions of the path that begins here, but does not take them.
    fn read_functions(&mut self, offset: u64) -> Result<(), Error> {
        self.functions.clear();
        loop {
            let at = self.functions.len() * ID_LEN;
            let order = self.order;
            let bytes = self.window.ahead(at + ID_LEN)?;
            if bytes.len() < at + ID_LEN {
                return Err(Error::Truncated {
                    record: "path",
                    offset,
                    needs: (at + ID_LEN + DATA_LEN) as u64,
                    has: bytes.len() as u64,
                });
            }
            match order.i32(bytes, at) {
                0 => return Ok(()),
                function if self.functions.len() < MAX_PATH_LEN => self.functions.push(function),
                _ => {
                    return Err(Error::TooLong {
                        what: "path",
                        offset,
                        len: (at + ID_LEN) as u64,
                        limit: (MAX_PATH_LEN * ID_LEN) as u64,
                    });
                }
            }
        }
    }
}

/// Writes a block: the functions, calls and ticks of each path.
///
/// # Errors
///
/// The errors of the output; [`io::ErrorKind::InvalidInput`] if the block is too long for its
/// header.
pub fn write_block<'a>(
    block: BlockHeader,
    paths: impl Iterator<Item = (&'a [i32], u64, u64)>,
    order: ByteOrder,
    output: &mut dyn Write,
) -> io::Result<()> {
    let mut body = Vec::new();
    for (functions, calls, ticks) in paths {
        for function in functions.iter().chain(&[0]) {
            body.extend_from_slice(&order.put_u32(function.cast_unsigned()));
        }
        body.extend_from_slice(&order.put_u64(calls));
        body.extend_from_slice(&order.put_u64(ticks));
    }
    let len = u32::try_from(BLOCK_HEADER_LEN + body.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the block is too long"))?;
    output.write_all(&order.put_u32(len))?;
    output.write_all(&order.put_u32(block.number))?;
    output.write_all(&order.put_u64(block.thread))?;
    output.write_all(&body)
}
