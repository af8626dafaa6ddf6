//! In which form a command prints.
//!
//! A *format* is chosen once, where the arguments are read; a text is for people, JSON for programs and stable.

use std::fmt::Display;
use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Plain,
    /// A text with ANSI colours.
    Coloured,
}

impl Format {
    /// JSON if asked for; else a text, coloured on a terminal unless `NO_COLOR` is set.
    pub fn of(json: bool, output: &impl IsTerminal) -> Format {
        let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match json {
            true => Format::Json,
            false if wants_colour && output.is_terminal() => Format::Coloured,
            false => Format::Plain,
        }
    }

    pub fn bold(self, text: impl Display) -> String {
        self.painted("1", text)
    }

    pub fn dim(self, text: impl Display) -> String {
        self.painted("2", text)
    }

    pub fn red(self, text: impl Display) -> String {
        self.painted("31", text)
    }

    pub fn green(self, text: impl Display) -> String {
        self.painted("32", text)
    }

    /// `code`: the number of ANSI's "select graphic rendition".
    fn painted(self, code: &'static str, text: impl Display) -> String {
        match self {
            Format::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
            Format::Plain | Format::Json => text.to_string(),
        }
    }
}
