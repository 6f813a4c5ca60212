//! The kernel's tracepoints: where the kernel describes them, and how the fields of their events
//! are packed for a trace.
//!
//! ```text
//!  /sys/kernel/tracing/events/sched/sched_wakeup/{id,format}
//!
//!  field:char comm[16];            offset:8;  size:16; signed:0;   ──► comm:str16
//!  field:pid_t pid;                offset:24; size:4;  signed:1;   ──► pid:i32
//!  field:__data_loc char[] name;   offset:28; size:4;  signed:0;   ──► name:lenstr
//! ```
//!
//! An event is copied field by field. The kernel does not clear the bytes between the fields, which
//! may be left from an event of another process.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use xray_trace::event_format::{MOST_FIELD_BYTES, MOST_FIELDS, Tracepoint};

/// The folders that the kernel may show its tracepoints in.
const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The longest description that is read, in bytes.
const MOST_DESCRIPTION_BYTES: u64 = 256 * 1024;
/// The longest name of a tracepoint, in bytes.
const LONGEST_NAME: usize = 128;
/// The most elements of an array that become fields of their own.
const MOST_ELEMENTS: usize = 16;
/// The bytes of an event at which the kernel has the number of its tracepoint.
const NUMBER: usize = 0;

/// A tracepoint of this kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelTracepoint {
    /// The number of its events in the kernel's records.
    pub(crate) id: u16,
    /// The name, and the fields of a packed event.
    pub(crate) described: Tracepoint,
    /// The places of these fields in the kernel's record.
    places: Vec<Place>,
}

/// The place of a field in the kernel's record of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// These bytes.
    Fixed { offset: usize, size: usize },
    /// The bytes at the offset and of the length that 4 bytes at `offset` give. With `relative`,
    /// the offset counts from the end of the 4 bytes.
    Dynamic { offset: usize, relative: bool },
}

/// Reasons why a tracepoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracepointError {
    /// The text is no name of a tracepoint.
    #[error("'{0}' is not the name of a tracepoint, such as sched:sched_wakeup")]
    NoName(String),
    /// The kernel has no such tracepoint.
    #[error(
        "the kernel has no tracepoint {0}; /sys/kernel/tracing/available_events lists those that \
         it has"
    )]
    Unknown(String),
    /// The kernel shows no tracepoints.
    #[error("the kernel's tracepoints cannot be read in /sys/kernel/tracing: {0}{hint}", hint = hint(.0))]
    NoFolder(io::Error),
    /// The description of a tracepoint cannot be read.
    #[error("cannot read the kernel's description of {0}: {1}")]
    Unreadable(String, io::Error),
    /// The description makes no sense.
    #[error("the kernel's description of {0} cannot be understood")]
    Description(String),
}

// === impl KernelTracepoint ===

impl KernelTracepoint {
    /// The tracepoint with this name, like `sched:sched_wakeup`.
    ///
    /// # Errors
    /// As [`TracepointError`] describes.
    pub(crate) fn find(name: &str) -> Result<Self, TracepointError> {
        let (system, event) = parts(name).ok_or_else(|| {
            let start: String = name.chars().take(LONGEST_NAME).collect();
            TracepointError::NoName(start)
        })?;
        let folder = events_folder().map_err(TracepointError::NoFolder)?;
        let folder = folder.join(system).join(event);
        let read = |file: &str| match read(&folder.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(TracepointError::Unknown(name.to_owned()))
            }
            read => read.map_err(|error| TracepointError::Unreadable(name.to_owned(), error)),
        };
        let no_sense = || TracepointError::Description(name.to_owned());
        let id = read("id")?.trim().parse().map_err(|_| no_sense())?;
        Self::of(id, name, &read("format")?).ok_or_else(no_sense)
    }

    /// The tracepoint with this number, name and description. Fields that have no place in a packed
    /// event are left out. `None` if no field is left.
    fn of(id: u16, name: &str, description: &str) -> Option<Self> {
        let mut places = Vec::new();
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in description.lines() {
            for (name, kind, place) in fields_of(line) {
                let is_new = fields.iter().all(|(known, _)| *known != name);
                if is_new && fields.len() < MOST_FIELDS {
                    fields.push((name, kind));
                    places.push(place);
                }
            }
        }
        let fields = fields.iter().map(|(name, kind)| format!("{name}:{kind}"));
        let fields = fields.collect::<Vec<_>>().join(",");
        let described = Tracepoint::new(name.to_owned(), fields);
        described.format()?;
        Some(Self {
            id,
            described,
            places,
        })
    }

    /// Appends the fields of an event to `packed`. A field that the kernel's record lacks is zero.
    pub(crate) fn pack(&self, record: &[u8], packed: &mut Vec<u8>) {
        for place in &self.places {
            match *place {
                Place::Fixed { offset, size } => {
                    let there = record.get(offset..).unwrap_or_default();
                    let there = there.get(..size).unwrap_or(there);
                    packed.extend_from_slice(there);
                    packed.resize(packed.len() + (size - there.len()), 0);
                }
                Place::Dynamic { offset, relative } => {
                    let bytes = dynamic(record, offset, relative).unwrap_or_default();
                    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
                    packed.extend_from_slice(&len.to_le_bytes());
                    packed.extend_from_slice(bytes.get(..len.into()).unwrap_or(bytes));
                }
            }
        }
    }
}

/// A remedy, for the end of an error.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; root makes them visible with: mount -t tracefs tracefs /sys/kernel/tracing"
        }
        io::ErrorKind::PermissionDenied => "; root and a daemon of root can read them",
        _ => "",
    }
}

/// The number of the tracepoint of a kernel's record.
pub(crate) fn tracepoint_of(record: &[u8]) -> Option<u16> {
    let bytes = record.get(NUMBER..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

/// The bytes of a field of variable length.
fn dynamic(record: &[u8], offset: usize, relative: bool) -> Option<&[u8]> {
    let word = u32::from_ne_bytes(*record.get(offset..)?.first_chunk()?);
    let [low, high] = [word & 0xffff, word >> 16];
    let from = usize::try_from(low).ok()?;
    let from = match relative {
        true => from.checked_add(offset.checked_add(4)?)?,
        false => from,
    };
    let len = usize::try_from(high).ok()?;
    record.get(from..from.checked_add(len)?)
}

/// The system and the event of a name, if it is one.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (system, event) = name.split_once(':')?;
    let is_word = |word: &str| {
        let mut letters = word.bytes();
        let begins = letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
        begins && letters.all(|letter| letter.is_ascii_alphanumeric() || b"_-".contains(&letter))
    };
    let is_name = name.len() <= LONGEST_NAME && is_word(system) && is_word(event);
    is_name.then_some((system, event))
}

/// The folder with the kernel's descriptions.
fn events_folder() -> io::Result<PathBuf> {
    let mut first = None;
    for folder in FOLDERS {
        let events = Path::new(folder).join("events");
        match events.read_dir() {
            Ok(_) => return Ok(events),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    file.take(MOST_DESCRIPTION_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// The fields that a line of a description becomes: name, kind and place of each.
fn fields_of(line: &str) -> Vec<(String, String, Place)> {
    field(line.trim()).unwrap_or_default()
}

fn field(line: &str) -> Option<Vec<(String, String, Place)>> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.parse::<usize>().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")?);
    let fixed = |offset, size| Place::Fixed { offset, size };
    let prefix = if signed == 0 { 'u' } else { 'i' };
    let relative = declaration.starts_with("__rel_loc ");
    if relative || declaration.starts_with("__data_loc ") {
        let (kind, name) = declaration.rsplit_once(' ')?;
        let kind = match kind.contains("char") {
            true => "lenstr",
            false => "lenbytes",
        };
        return one(name, kind, Place::Dynamic { offset, relative });
    }
    let (declaration, elements) = match declaration.split_once('[') {
        Some((declaration, count)) => (declaration, Some(count.trim_end_matches(']'))),
        None => (declaration, None),
    };
    let (kind, name) = declaration.rsplit_once([' ', '*'])?;
    let is_text = kind.trim() == "char";
    let is_wanted = !name.starts_with("common_") || name == "common_pid";
    if !is_wanted || size == 0 || size > MOST_FIELD_BYTES {
        return None;
    }
    match elements {
        None if matches!(size, 1 | 2 | 4 | 8) => {
            one(name, &format!("{prefix}{}", 8 * size), fixed(offset, size))
        }
        None => one(name, &format!("bytes{size}"), fixed(offset, size)),
        Some(_) if is_text => one(name, &format!("str{size}"), fixed(offset, size)),
        Some(count) => {
            let count = count
                .parse()
                .ok()
                .filter(|count| (1..=MOST_ELEMENTS).contains(count));
            let each = count.map(|count| (count, size / count, size % count));
            match each {
                Some((count, each @ (1 | 2 | 4 | 8), 0)) => {
                    let kind = format!("{prefix}{}", 8 * each);
                    let fields = (0..count).map(|index| {
                        let place = fixed(offset + index * each, each);
                        (format!("{name}_{index}"), kind.clone(), place)
                    });
                    Some(fields.collect())
                }
                _ => one(name, &format!("bytes{size}"), fixed(offset, size)),
            }
        }
    }
}

fn one(name: &str, kind: &str, place: Place) -> Option<Vec<(String, String, Place)>> {
    Some(vec![(name.to_owned(), kind.to_owned(), place)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The description of a tracepoint with these fields: declaration, offset, size, sign.
    fn description(fields: &[(&str, usize, usize, u8)]) -> String {
        let lines = fields.iter().map(|(declaration, offset, size, signed)| {
            format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
        });
        let lines: String = lines.collect();
        format!("name: x\nID: 7\nformat:\n{lines}\nprint fmt: \"field:%d;\", REC->x\n")
    }

    fn fields(description: &str) -> String {
        let tracepoint = KernelTracepoint::of(7, "a:b", description);
        tracepoint.unwrap().described.description().to_owned()
    }

    #[test]
    fn fields_have_the_kinds_that_the_kernel_describes() {
        for (declaration, size, signed, expected) in [
            ("unsigned short common_type", 2, 0, ""),
            ("int common_pid", 4, 1, "common_pid:i32"),
            ("char comm[16]", 16, 0, "comm:str16"),
            ("char comm[TASK_COMM_LEN]", 16, 0, "comm:str16"),
            ("pid_t pid", 4, 1, "pid:i32"),
            ("u32 * uaddr", 8, 0, "uaddr:u64"),
            ("const char *filename", 8, 0, "filename:u64"),
            ("unsigned long args[2]", 16, 0, "args_0:u64,args_1:u64"),
            (
                "unsigned char mac[6]",
                6,
                0,
                "mac_0:u8,mac_1:u8,mac_2:u8,mac_3:u8,mac_4:u8,mac_5:u8",
            ),
            ("u8 digest[64]", 64, 0, "digest:bytes64"),
            ("struct timespec when", 16, 0, "when:bytes16"),
            ("__data_loc char[] name", 4, 0, "name:lenstr"),
            ("__rel_loc char[] name", 4, 0, "name:lenstr"),
            ("__data_loc u8[] data", 4, 0, "data:lenbytes"),
            ("char huge[8192]", 8192, 0, ""),
            ("int nothing", 0, 0, ""),
        ] {
            let text = description(&[(declaration, 8, size, signed), ("int last", 40, 4, 1)]);
            let expected = match expected {
                "" => "last:i32".to_owned(),
                expected => format!("{expected},last:i32"),
            };
            assert_eq!(fields(&text), expected, "{declaration}");
        }
    }

    #[test]
    fn an_event_is_copied_field_by_field() {
        let text = description(&[
            ("unsigned short common_type", 0, 2, 0),
            ("int common_pid", 4, 4, 1),
            ("char comm[4]", 8, 4, 0),
            ("__data_loc char[] name", 12, 4, 0),
            ("__rel_loc u8[] data", 16, 4, 0),
        ]);
        let tracepoint = KernelTracepoint::of(7, "a:b", &text).unwrap();
        let mut record = vec![7, 0, 0xee, 0xee, 1, 0, 0, 0, b'a', 0, 0xee, 0xee];
        record.extend(((3 << 16) | 22_u32).to_ne_bytes());
        record.extend(((2 << 16) | 5_u32).to_ne_bytes());
        record.extend(b"..hi\0\x01\x02...");
        assert_eq!(tracepoint_of(&record), Some(7));
        let mut packed = Vec::new();
        tracepoint.pack(&record, &mut packed);
        let format = tracepoint.described.format().unwrap();
        let decoded = format.decode(&packed);
        assert!(!decoded.is_cut && decoded.rest.is_empty());
        let shown: Vec<_> = decoded
            .fields
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(shown.join(" "), "common_pid=1 comm=a name=hi data=0x0102");
    }

    #[test]
    fn names_are_two_words() {
        for name in ["sched:sched_wakeup", "syscalls:sys_enter_futex", "a:b-c"] {
            assert!(parts(name).is_some(), "{name}");
        }
        for name in [
            "", ":", "a:", ":b", "a", "a:b:c", "a:b/c", "../a:b", "a:..", "a:*", "a b:c", "1:b",
        ] {
            assert!(parts(name).is_none(), "{name}");
            assert!(matches!(
                KernelTracepoint::find(name),
                Err(TracepointError::NoName(_))
            ));
        }
        assert!(parts(&format!("a:{}", "b".repeat(LONGEST_NAME))).is_none());
    }

    /// The kernel of this machine describes its tracepoints so that all of them can be used.
    #[test]
    fn all_tracepoints_of_this_kernel_are_understood() {
        let folder = match events_folder() {
            Ok(folder) => folder,
            Err(error) => {
                let required = std::env::var_os("CI").is_some();
                assert!(
                    !required,
                    "this test needs tracefs and the right to read it: {error}"
                );
                eprintln!("NOT TESTED: no tracefs: {error}");
                return;
            }
        };
        let mut found = 0;
        for system in folder.read_dir().unwrap().flatten() {
            let Ok(events) = system.path().read_dir() else {
                continue;
            };
            for event in events.flatten() {
                // Events without a number are those of the tracer itself.
                if !event.path().join("id").exists() || system.file_name() == "ftrace" {
                    continue;
                }
                let [system, event] = [system.file_name(), event.file_name()];
                let name = format!("{}:{}", system.display(), event.display());
                let tracepoint = KernelTracepoint::find(&name).unwrap();
                assert_eq!(tracepoint.described.name, name);
                found += 1;
            }
        }
        assert!(found > 100, "{found}");
    }

    proptest! {
        #[test]
        fn any_description_and_any_record_can_be_read(
            description: String, record: Vec<u8>, offset: u16, size in 0..9000_usize,
        ) {
            let _ = KernelTracepoint::of(7, "a:b", &description);
            let line = format!("field:int x; offset:{offset}; size:{size}; signed:1;\n\
                field:__data_loc char[] y; offset:{offset}; size:4; signed:0;\n\
                field:__rel_loc char[] z; offset:{offset}; size:4; signed:0;");
            let tracepoint = KernelTracepoint::of(7, "a:b", &line).unwrap();
            let mut packed = Vec::new();
            tracepoint.pack(&record, &mut packed);
            let format = tracepoint.described.format().unwrap();
            prop_assert!(!format.decode(&packed).is_cut);
        }
    }
}
