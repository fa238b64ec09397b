/* A lab's check: its steps, each with what to run and what is right. check_main does the rest: it runs every step in a
   sandbox in both precisions, compares, diagnoses and reports. See tests/labs for the checks themselves. */
#ifndef CHECK_H
#define CHECK_H

#include "trace.h"

typedef struct {
    const char *id;      /* "3c" */
    int points;          /* of 100 for all steps of all labs */
    const char *title;   /* "the cached forward pass of a whole model" */
    const char *needs;   /* steps that it builds on: "3a 3b"; where one of them fails, this one waits for it */
    const char *float_note; /* said after the largest difference in float, or NULL */
    void (*run)(trace *t);    /* runs the answer's code and records what it did: in the sandbox */
    void (*expect)(trace *t); /* records the same arrays as they ought to be, without the answer's code */
} step;

typedef struct {
    const char *name;  /* "lab3": `make lab3` */
    const char *title; /* "the KV cache" */
    const step *steps;
    int n_steps;
    bool has_answer; /* the answer is part of the check: there's no answer.so */
} lab;

/* The main function of a check. Exit status: 0 all steps pass, 1 one doesn't, 2 it couldn't be run. */
int check_main(const lab *l, int argc, char **argv);

#endif
