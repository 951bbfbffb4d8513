/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries for x86-64 (System V). An entry jumps through its slot of vgpu_real,
 * so that stack arguments and all registers reach the driver untouched. A slot
 * first leads to its lazy part, which finds the real address.
 */
	.text

.macro VGPU_ENTRY name, index
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	jmp	*vgpu_real+8*\index(%rip)
	.cfi_endproc
	.size	\name, . - \name
.endm

.macro VGPU_LAZY index
	.p2align 4
vgpu_lazy_\index:
	endbr64
	pushq	$\index
	jmp	vgpu_lazy
.endm

/* On the stack: the index, then the caller's return address. Every register
 * that may hold an argument is kept: six integers, rax (the number of vector
 * registers of a variadic call), r10 and eight vector registers (cuParamSetf
 * takes a float). */
	.type	vgpu_lazy, @function
	.p2align 4
vgpu_lazy:
	.cfi_startproc
	.cfi_adjust_cfa_offset 8
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	pushq	%rcx
	.cfi_adjust_cfa_offset 8
	pushq	%r8
	.cfi_adjust_cfa_offset 8
	pushq	%r9
	.cfi_adjust_cfa_offset 8
	pushq	%rax
	.cfi_adjust_cfa_offset 8
	pushq	%r10
	.cfi_adjust_cfa_offset 8
	subq	$128, %rsp
	.cfi_adjust_cfa_offset 128
	movups	%xmm0, (%rsp)
	movups	%xmm1, 16(%rsp)
	movups	%xmm2, 32(%rsp)
	movups	%xmm3, 48(%rsp)
	movups	%xmm4, 64(%rsp)
	movups	%xmm5, 80(%rsp)
	movups	%xmm6, 96(%rsp)
	movups	%xmm7, 112(%rsp)
	movl	192(%rsp), %edi		/* the index, above 128 + 8 * 8 bytes */
	call	vgpu_resolve
	movq	%rax, %r11
	movups	(%rsp), %xmm0
	movups	16(%rsp), %xmm1
	movups	32(%rsp), %xmm2
	movups	48(%rsp), %xmm3
	movups	64(%rsp), %xmm4
	movups	80(%rsp), %xmm5
	movups	96(%rsp), %xmm6
	movups	112(%rsp), %xmm7
	addq	$128, %rsp
	.cfi_adjust_cfa_offset -128
	popq	%r10
	.cfi_adjust_cfa_offset -8
	popq	%rax
	.cfi_adjust_cfa_offset -8
	popq	%r9
	.cfi_adjust_cfa_offset -8
	popq	%r8
	.cfi_adjust_cfa_offset -8
	popq	%rcx
	.cfi_adjust_cfa_offset -8
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	jmp	*%r11
	.cfi_endproc
	.size	vgpu_lazy, . - vgpu_lazy

.macro VGPU_TABLE
	.data
	.globl	vgpu_real
	.hidden	vgpu_real
	.type	vgpu_real, @object
	.p2align 6
vgpu_real:
.endm

.macro VGPU_SLOT index
	.quad	vgpu_lazy_\index
.endm

.macro VGPU_TABLE_END
	.size	vgpu_real, . - vgpu_real
.endm

/* IBT and SHSTK: the linker keeps these marks only if every file has them. */
	.section .note.gnu.property, "a"
	.p2align 3
	.long	4
	.long	16
	.long	5
	.asciz	"GNU"
	.long	0xc0000002
	.long	4
	.long	3
	.long	0
	.section .note.GNU-stack, "", @progbits
	.text
