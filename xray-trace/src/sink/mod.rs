//! The sinks: they write the trace model in the formats of other tools. One file per format.
//!
//! Every sink unpacks one block of a thread at a time. The memory of a sink that sums up grows with
//! the number of different stacks. The memory of other sinks grows with the number of functions and
//! threads; they also hold up to 6 batches of events that are unpacked ahead.

mod basic;
mod callgrind;
mod chrome;
mod csv;
mod ctf;
mod events;
mod fdr;
mod fields;
mod file_sink;
mod firefox;
mod folded;
mod folder_sink;
mod format;
mod frames;
#[cfg(feature = "export")]
mod html;
mod json_lines;
mod kernel_ids;
mod left_out;
#[cfg(feature = "export")]
mod parquet;
mod per_function;
#[cfg(feature = "export")]
mod perfetto;
#[cfg(feature = "export")]
mod pprof;
mod processor;
mod profile;
mod records;
mod report;
mod speedscope;
mod stacks;
mod text;
mod unpack_thread;
mod wording;
mod xtrace;
mod yaml;

pub use basic::Basic;
pub use callgrind::Callgrind;
pub use chrome::Chrome;
pub use csv::Csv;
pub use ctf::Ctf;
pub use fdr::Fdr;
pub use file_sink::{EventSink, ProfileSink, Sink};
pub use firefox::Firefox;
pub use folded::Folded;
pub use folder_sink::{EventFolderSink, Folder, FolderSink};
pub use format::{FORMATS, Format, by_extension, by_name};
#[cfg(feature = "export")]
pub use html::{NoteTone, Page, PageNote, Standing};
pub use json_lines::JsonLines;
#[cfg(feature = "export")]
pub use parquet::Parquet;
#[cfg(feature = "export")]
pub use perfetto::Perfetto;
#[cfg(feature = "export")]
pub use pprof::Pprof;
pub use profile::Profile as LlvmProfile;
pub use report::Report;
pub use speedscope::Speedscope;
pub use xtrace::Xtrace;
pub use yaml::Yaml;
