//! `xrayctl completions`: the script with which a shell completes our command line.
//!
//! clap generates the script for commands and options. Behind it, a function of ours asks
//! `xrayctl completions --candidates` for processes and functions. If there are none, clap's part
//! completes the word. The shells take the candidates as words, and evaluate none of them.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::candidates;
use crate::client::Daemon;
use crate::output::Console;
use crate::process::one_of;

const EXAMPLES: &str = "\
The scripts also complete processes, units of systemd, and functions of a process. They are the
names of programs with sleds that run at that moment.

Examples:
  xrayctl completions bash > ~/.local/share/bash-completion/completions/xrayctl
  xrayctl completions zsh > ~/.zfunc/_xrayctl
  xrayctl completions fish > ~/.config/fish/completions/xrayctl.fish";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["shell", "candidates"]))]
#[command(override_usage = "xrayctl completions [OPTIONS] <SHELL>")]
pub(crate) struct Args {
    /// The shell
    shell: Option<Shell>,
    /// Print processes or functions that can take the place of the last word, for the scripts
    #[arg(long, hide = true)]
    candidates: bool,
    /// The words behind the name of the program
    #[arg(last = true, hide = true, conflicts_with = "shell")]
    words: Vec<String>,
}

/// Bash replaces the part of the word behind its last colon alone.
const BASH: &str = r#"
_xrayctl_candidates() {
    local line="${COMP_LINE:0:COMP_POINT}" current="" candidate colon
    local -a words
    read -ra words <<< "$line"
    case "$line" in
        *[[:space:]]) words+=("") ;;
        *) current="${words[${#words[@]}-1]}" ;;
    esac
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        printf -v candidate '%q' "$candidate"
        COMPREPLY+=("$candidate")
    done < <("$1" completions --candidates -- "${words[@]:1}" 2>/dev/null)
    if [ "${#COMPREPLY[@]}" -eq 0 ]; then
        _xrayctl "$@"
        return
    fi
    if [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        colon="${current%"${current##*:}"}"
        COMPREPLY=("${COMPREPLY[@]#"$colon"}")
    fi
}

complete -F _xrayctl_candidates -o bashdefault -o default xrayctl
"#;

const ZSH: &str = r#"_xrayctl() {
    local -a candidates
    local tab=$'\t'
    candidates=("${(@f)$("${(Q)words[1]}" completions --candidates -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    candidates=("${(@)candidates%%${tab}*}")
    candidates=("${(@)candidates:#}")
    if (( ${#candidates} )); then
        compadd -a candidates
        return
    fi
    _xrayctl_words "$@"
}

"#;

const FISH: &str = r#"
function __fish_xrayctl_candidates
    set -l words (commandline -opc)
    $words[1] completions --candidates -- $words[2..-1] (commandline -ct) 2>/dev/null
end

complete -c xrayctl -n "not __fish_xrayctl_needs_command" -a "(__fish_xrayctl_candidates)"
"#;

/// The begin of clap's function for zsh, and of the part behind all functions.
const ZSH_FUNCTION: &str = "_xrayctl() {\n";
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_xrayctl\" ]; then\n";

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let Some(shell) = args.shell else {
        let found = candidates::of(&args.words, daemon).await;
        return console.show(|out, _| {
            let mut found = found.iter();
            found.try_for_each(|found| writeln!(out, "{}\t{}", found.word, found.description))
        });
    };
    let script = script(shell)?;
    console.show(|out, _| out.write_all(script.as_bytes()))
}

/// The script of a shell.
fn script(shell: Shell) -> anyhow::Result<String> {
    // The generator panics if it cannot write, and a reader may go away. So the script goes to
    // memory first.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "xrayctl", &mut script);
    let script = String::from_utf8(script)?;
    Ok(match shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH + &options_for_fish(),
        Shell::Zsh => script
            .replacen(ZSH_FUNCTION, "_xrayctl_words() {\n", 1)
            .replacen(ZSH_END, &format!("{ZSH}{ZSH_END}"), 1),
        _ => script,
    })
}

/// The values of options: fish asks for them at each option.
fn options_for_fish() -> String {
    let cli = Cli::command();
    let mut lines = String::new();
    for command in cli
        .get_subcommands()
        .filter(|command| candidates::is_for_processes(command))
    {
        for option in command
            .get_opts()
            .filter(|option| candidates::is_named(option))
        {
            let short = option.get_short().map(|short| format!(" -s {short}"));
            let long = option.get_long().map(|long| format!(" -l {long}"));
            lines += &format!(
                "complete -c xrayctl -n \"__fish_xrayctl_using_subcommand {}\"{}{} -x -a \"(__fish_xrayctl_candidates)\"\n",
                command.get_name(),
                short.unwrap_or_default(),
                long.unwrap_or_default(),
            );
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_ask_for_candidates() {
        for (shell, parts) in [
            (Shell::Bash, &["complete -F _xrayctl_candidates "][..]),
            (
                Shell::Zsh,
                &[
                    "\n_xrayctl() {\n    local -a candidates",
                    "\n_xrayctl_words() {\n",
                ],
            ),
            (
                Shell::Fish,
                &[
                    "\ncomplete -c xrayctl -n \"__fish_xrayctl_using_subcommand enable\" -s p -l pid -x -a",
                    "\ncomplete -c xrayctl -n \"__fish_xrayctl_using_subcommand enable\" -l function -x -a",
                ],
            ),
        ] {
            let script = script(shell).unwrap();
            let asks = script.matches("completions --candidates -- ").count();
            assert_eq!(asks, 1, "{shell}");
            for part in parts {
                assert_eq!(script.matches(part).count(), 1, "{shell}: {part}");
            }
        }
    }
}
