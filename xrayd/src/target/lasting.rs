//! Text that stays as long as the address space does. There a borrowed thread may execute an
//! instruction.

use super::{MapEntry, Maps, linked, modules::executable_files};
use crate::pid::Pid;

/// Executable mappings that are never unloaded and that no descriptor writes to. The vdso comes
/// first. Then come, by size, the text of the main program, of its loader, and of the libraries
/// that it is linked against. Memory that a program shares with itself to write code into (a memfd)
/// is not among them.
///
/// A program can still change its own text at any moment.
pub(crate) fn lasting_text(pid: Pid, maps: &Maps) -> Vec<&MapEntry> {
    let linked = linked(pid, maps);
    let groups = executable_files(maps);
    let lasting = groups.iter().filter(|group| linked.contains(&group.load()));
    let mut text: Vec<&MapEntry> = lasting
        .flat_map(|group| group.executable.iter().copied())
        .chain(maps.iter().filter(|entry| entry.name == "[vdso]"))
        .filter(|entry| entry.permissions == *b"r-xp")
        .collect();
    text.sort_by_key(|entry| (entry.name != "[vdso]", entry.range.end - entry.range.start));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_comes_first_and_memory_of_no_program_never() {
        let pid = Pid::this();
        let maps = Maps::read(pid, pid.leader()).unwrap();
        let text = lasting_text(pid, &maps);
        assert_eq!(text[0].name, "[vdso]");
        assert!(text.len() > 2, "{text:?}");
        let libc = text.iter().any(|entry| entry.name.contains("libc"));
        assert!(libc, "{text:?}");
        // It belongs to no file that the program is, or is linked against.
        let alias = maps.iter().find(|entry| entry.is_file()).unwrap();
        let alias = MapEntry {
            permissions: *b"r-xs",
            ..alias.clone()
        };
        assert!(!text.contains(&&alias));
    }
}
