//! `xrayctl explain`: the meaning of a reason id, and the remedy.

use serde::Serialize;
use xrayd::Reason;

use crate::args::Format;
use crate::failure::Failure;
use crate::output::{Console, Tone, text};

const EXAMPLES: &str = "\
Without an id, explain lists all reasons.

Examples:
  xrayctl explain foreign-tracer";

/// The longest line of prose in characters, even on a wider terminal.
const PROSE_WIDTH: usize = 100;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The reason id of a refusal, in brackets in its message
    id: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Explanations {
    reasons: Vec<Explanation>,
}

#[derive(Debug, Serialize)]
struct Explanation {
    id: &'static str,
    text: &'static str,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let chosen = match &args.id {
        None => Reason::ALL.to_vec(),
        Some(id) => vec![Reason::from_id(id).ok_or_else(|| {
            let ids: Vec<_> = Reason::ALL.iter().map(|reason| reason.id()).collect();
            Failure::Usage(format!(
                "there is no reason id {id:?}; the ids are {}",
                ids.join(", ")
            ))
        })?],
    };
    let explain = |reason: Reason| Explanation {
        id: reason.id(),
        text: reason.explain(),
    };
    let explained = Explanations {
        reasons: chosen.into_iter().map(explain).collect(),
    };
    if args.format.json {
        return console.json(&explained);
    }
    console.show(|out, look| {
        let width = look.width.unwrap_or(PROSE_WIDTH).clamp(30, PROSE_WIDTH);
        for Explanation { id, text } in &explained.reasons {
            writeln!(out, "{}", look.paint(Tone::Heading, id))?;
            for line in text::wrap(text, width - 4) {
                writeln!(out, "    {line}")?;
            }
        }
        Ok(())
    })
}
