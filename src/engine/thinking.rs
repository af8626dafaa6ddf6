//! Defines `Budget`: how many tokens a model may think before it must speak.
//!
//! *Thinking* is what stands between two marks of the chat template, which are tokens like others. When the budget is spent the end
//! mark is written in the model's stead. Pure: it is told each token and says which one must come.

use super::ThinkingRules;
use crate::request::Token;

#[derive(Clone, Debug)]
pub struct Budget {
    rules: ThinkingRules,
    state: State,
    /// The last tokens, as many as the longest mark has.
    tail: Vec<Token>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It has not begun to think.
    Before,
    Thinking {
        n_tokens: usize,
    },
    /// So many tokens of the end mark are written.
    Ending {
        n_written: usize,
    },
    /// A model that thought does not think again in the same answer.
    After,
}

impl Budget {
    /// `opening`: the tokens of `rules.opening`, with which thinking may have begun.
    pub fn new(rules: ThinkingRules, opening: &[Token]) -> Budget {
        let mut budget = Budget { rules, state: State::Before, tail: Vec::new() };
        for &token in opening {
            budget.accept(token, true);
        }
        budget
    }

    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thinking { .. } | State::Ending { .. })
    }

    /// The token that must come next, if one must.
    pub fn forced(&self) -> Option<Token> {
        match self.state {
            State::Ending { n_written } => self.end_mark().get(n_written).copied(),
            _ => None,
        }
    }

    /// `token` came. `is_whole`: the text ends with a whole character, and so may be broken off. When thinking ends here: the
    /// mark that ended it.
    pub fn accept(&mut self, token: Token, is_whole: bool) -> Option<&[Token]> {
        if self.state == State::After {
            return None;
        }
        let n_tail = self.rules.ends.iter().chain([&self.rules.start]).map(Vec::len).max().unwrap_or(0);
        self.tail.push(token);
        self.tail.drain(..self.tail.len().saturating_sub(n_tail));
        self.state = match self.state {
            State::Before if !self.rules.start.is_empty() && self.tail.ends_with(&self.rules.start) => {
                self.tail.clear();
                self.thought(0, true)
            }
            State::Thinking { .. } | State::Ending { .. } if self.ended_by().is_some() => State::After,
            State::Thinking { n_tokens } => self.thought(n_tokens + 1, is_whole),
            State::Ending { n_written } => State::Ending { n_written: n_written + 1 },
            state => state,
        };
        let ended_by = self.ended_by().filter(|_| self.state == State::After);
        ended_by.map(|index| &*self.rules.ends[index])
    }

    fn thought(&self, n_tokens: usize, is_whole: bool) -> State {
        match self.rules.budget {
            Some(budget) if n_tokens >= budget && is_whole && !self.end_mark().is_empty() => {
                State::Ending { n_written: 0 }
            }
            _ => State::Thinking { n_tokens },
        }
    }

    fn ended_by(&self) -> Option<usize> {
        self.rules.ends.iter().position(|end| !end.is_empty() && self.tail.ends_with(end))
    }

    fn end_mark(&self) -> &[Token] {
        self.rules.ends.first().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(numbers: &[i32]) -> Vec<Token> {
        numbers.iter().copied().map(Token).collect()
    }

    /// Thinking is what stands between 1 2 and 8 9, or before 7.
    fn budget(n: Option<usize>, opening: &[i32]) -> Budget {
        let ends = vec![tokens(&[8, 9]), tokens(&[7])];
        let rules = ThinkingRules { start: tokens(&[1, 2]), ends, budget: n, opening: String::new() };
        Budget::new(rules, &tokens(opening))
    }

    /// What comes when the model says `said`, and what must come is written instead.
    fn run(mut budget: Budget, said: &[i32]) -> (Vec<i32>, bool) {
        let mut said = said.iter().copied();
        let mut came = Vec::new();
        while let Some(token) = budget.forced().map(|token| token.0).or_else(|| said.next()) {
            came.push(token);
            budget.accept(Token(token), true);
        }
        (came, budget.is_thinking())
    }

    #[test]
    fn a_spent_budget_writes_the_end_mark() {
        assert_eq!(run(budget(Some(2), &[]), &[5, 1, 2, 3, 3, 4, 4]), (vec![5, 1, 2, 3, 3, 8, 9, 4, 4], false));
        assert_eq!(run(budget(Some(2), &[1, 2]), &[3, 3, 4]), (vec![3, 3, 8, 9, 4], false));
        assert_eq!(run(budget(Some(0), &[1, 2]), &[4]), (vec![8, 9, 4], false));
        assert_eq!(run(budget(Some(0), &[]), &[1, 2, 4]), (vec![1, 2, 8, 9, 4], false));
    }

    #[test]
    fn a_model_that_ends_by_itself_is_left_alone() {
        assert_eq!(run(budget(Some(3), &[1, 2]), &[3, 8, 9, 3, 3, 3, 1, 2, 3, 3, 3, 3]).0.len(), 12, "it thinks once");
        assert_eq!(run(budget(Some(9), &[1, 2]), &[3, 7, 3]), (vec![3, 7, 3], false));
        assert_eq!(run(budget(None, &[1, 2]), &[3; 50]), (vec![3; 50], true));
        assert_eq!(run(budget(Some(1), &[]), &[3, 3, 1, 3]), (vec![3, 3, 1, 3], false));
    }

    #[test]
    fn thinking_is_not_broken_off_within_a_character() {
        let mut budget = budget(Some(1), &[1, 2]);
        budget.accept(Token(3), false);
        assert_eq!(budget.forced(), None);
        budget.accept(Token(3), true);
        assert_eq!(budget.forced(), Some(Token(8)));
    }

    #[test]
    fn who_waits_for_the_end_is_told_its_mark_once() {
        let mut budget = budget(None, &[1, 2]);
        assert_eq!(budget.accept(Token(8), true), None);
        assert_eq!(budget.accept(Token(9), true), Some(&*tokens(&[8, 9])));
        assert_eq!(budget.accept(Token(7), true), None);
    }
}
